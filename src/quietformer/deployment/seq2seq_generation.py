"""Texts that an exported encoder-decoder writes of other texts, or of what it hears."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from quietformer.architectures.forward import Batch
from quietformer.config.options.generate import GenerationOptions
from quietformer.data.audio_batches import AudioWindow, audio_batches, rate_of, window_samples
from quietformer.data.first_tokens import first_tokens
from quietformer.data.processors import feature_extractor_of
from quietformer.deployment.exported_folder import ExportedFolder
from quietformer.deployment.media_inputs import recording_samples
from quietformer.deployment.seq2seq_model import Seq2SeqModel
from quietformer.errors import QuietformerError

Given = tuple[list[int], Batch]
"""The places of what is given, and its batch."""


def written_texts(
    exported: ExportedFolder, model: Seq2SeqModel, given: Sequence[Any], options: GenerationOptions
) -> list[str]:
    """What the model writes of each text, or of each recording: a path of a .wav file, or samples of [-1, 1]."""
    first = first_tokens(exported.generation, exported.vocabulary, options.language)
    if first.room is not None and "max_new_tokens" not in options.model_fields_set:
        options = options.model_copy(update={"max_new_tokens": first.room})
    listens = "input_features" in model.inputs
    batches = _heard(exported, given, options) if listens else _read(exported, given, options)
    found: list[list[str]] = [[] for _ in given]
    for places, batch in batches:
        rows = model.written(batch, first, options)
        for place, text in zip(places, exported.tokenizer.batch_decode(rows, skip_special_tokens=True), strict=True):
            found[place].append(str(text))
    return ["".join(texts) for texts in found]


# ---- texts
def _read(exported: ExportedFolder, texts: Sequence[Any], options: GenerationOptions) -> Iterator[Given]:
    """The longest first; padded on the right, as encoders are used to."""
    if wrong := next((text for text in texts if not isinstance(text, str)), None):
        raise QuietformerError(f"texts are a text or a list of texts, got {type(wrong).__name__} in the list")
    tokens: list[list[int]] = exported.tokenizer(list(texts))["input_ids"]
    positions = exported.config.get("max_position_embeddings")
    longest = max(map(len, tokens))
    if isinstance(positions, int) and longest > positions:
        raise QuietformerError(f"a text has {longest} tokens, and the model has {positions} positions; shorten it")
    if not all(tokens):
        raise QuietformerError("a text is empty; give at least one word")
    order = sorted(range(len(tokens)), key=lambda place: -len(tokens[place]))
    for begin in range(0, len(order), options.batch_size):
        places = order[begin : begin + options.batch_size]
        rows = [tokens[place] for place in places]
        ids = torch.full((len(rows), len(rows[0])), int(exported.tokenizer.pad_token_id or 0))
        mask = torch.zeros_like(ids)
        for place, row in enumerate(rows):
            ids[place, : len(row)], mask[place, : len(row)] = torch.tensor(row), 1
        yield places, {"input_ids": ids, "attention_mask": mask}


# ---- recordings
def _heard(exported: ExportedFolder, recordings: Sequence[Any], options: GenerationOptions) -> Iterator[Given]:
    """Windows of all recordings, in order; one longer than the extractor's window is written of piece by piece."""
    extractor = feature_extractor_of(str(exported.folder))
    size, rate = window_samples(extractor), rate_of(extractor)
    pieces = [
        (place, piece)
        for place, recording in enumerate(recordings)
        for piece in torch.split(recording_samples(recording, options.sampling_rate or rate, rate), size)
    ]
    for begin in range(0, len(pieces), options.batch_size):
        chosen = pieces[begin : begin + options.batch_size]
        (batch,) = audio_batches([AudioWindow(piece) for _, piece in chosen], extractor, batch_size=len(chosen))
        yield [place for place, _ in chosen], batch
