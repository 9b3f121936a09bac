"""Data to calibrate on and other data to evaluate on, for whatever kind of model."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from quietformer.architectures.forward import Batch
from quietformer.config.options.data import CalibrationOptions
from quietformer.config.tasks import MeasuredTask
from quietformer.data.audio_batches import AudioWindow, audio_batches, folder_windows
from quietformer.data.batches_from_options import audio_folder, input_kind, labelled_images_of, sequences_of
from quietformer.data.calibration_split import split_sequences
from quietformer.data.image_batches import image_batches
from quietformer.data.known_items import KnownItems, known_item_batches, known_items
from quietformer.data.processors import feature_extractor_of, image_processor_of
from quietformer.data.sliding_windows import file_tokens, sliding_windows
from quietformer.data.text_batches import read_texts, special_tokens, text_batches
from quietformer.data.token_labels import mask_tokens
from quietformer.data.tokenizers import padding_of
from quietformer.errors import QuietformerError
from quietformer.results.data import DataInfo

T = TypeVar("T")

CHOICES = 4
"""How many times the calibration data there is to choose from, so that seeds give different batches."""

PARAGRAPHS = 2
"""So many paragraphs are searched for each sequence that is evaluated."""


@dataclass
class CalibrationData:
    """Evaluation batches, always the same, and a function from a seed to calibration batches."""

    evaluation: list[Batch]
    calibration: Callable[[int], list[Batch]]
    tokenizer: Any
    info: DataInfo
    known_items: KnownItems | None = None
    """What encoders of text are to retrieve; None for others, and where the text has too few paragraphs."""
    transcripts: list[str] | None = None
    """What is said in each window of audio of the evaluation batches; None if one of them has no transcript."""


def calibration_data(
    model: PreTrainedModel, source: str, task: MeasuredTask, options: CalibrationOptions = CalibrationOptions()
) -> CalibrationData:
    """Read everything once; where there is less than asked for, both parts shrink alike."""
    wanted = options.calibration * options.batch_size
    other = options.eval_texts or options.eval_images or options.eval_audio
    pool_size = CHOICES * wanted + (0 if other else options.sequences)
    kind = input_kind(model, options)
    if kind == "images":
        return _images(model, source, options, pool_size)
    if kind == "audio":
        return _audio(model, source, options, pool_size)
    return _texts(model, source, task, options, pool_size)


def _texts(
    model: PreTrainedModel, source: str, task: MeasuredTask, options: CalibrationOptions, pool_size: int
) -> CalibrationData:
    read = sequences_of(model, source, options, pool_size)
    pool, tokenizer, info, unread = read.sequences, read.tokenizer, read.info, read.unread
    types = wants_token_types(model, tokenizer)
    embeddings: Any = model.get_input_embeddings()
    asked = None
    if options.eval_texts is not None:
        other = options.model_copy(update={"texts": options.eval_texts, "dataset": "", "length": info.length})
        evaluated = sequences_of(model, source, other, options.sequences)
        asked, unread = evaluated.sequences, iter(read_texts(options.eval_texts))
        info = info.adding(evaluation_source=evaluated.info.source)
    asked, drawn, info = _divided(pool, asked, options, info)

    def typed(made: list[Batch]) -> list[Batch]:
        if not types:
            return made
        return [batch | {"token_type_ids": torch.zeros_like(batch["input_ids"])} for batch in made]

    def batched(sequences: list[list[int]], seed: int) -> list[Batch]:
        made = typed(list(text_batches(sequences, pad=padding_of(tokenizer), batch_size=options.batch_size)))
        if task != "masked":
            return made
        return mask_tokens(
            made, mask_token=tokenizer.mask_token_id, special_tokens=tokenizer.all_special_ids,
            vocabulary=embeddings.weight.shape[0], seed=seed,
        )  # fmt: skip

    items: KnownItems | None = None
    if task == "embedding":
        assert info.length is not None
        pairs = known_items(unread, PARAGRAPHS * options.sequences)
        items = known_item_batches(pairs, tokenizer, length=info.length, batch_size=options.batch_size)
        items = items and KnownItems(typed(items.queries), typed(items.documents))
    evaluation = batched(asked, 0)
    if options.stride is not None:
        assert options.eval_texts is not None
        assert info.length is not None
        if task != "causal":
            raise QuietformerError(f"--stride is for causal language models, not for {type(model).__name__}")
        evaluation = sliding_windows(
            file_tokens(options.eval_texts, tokenizer), length=info.length, stride=options.stride,
            before=special_tokens(tokenizer)[0], batch_size=options.batch_size,
        )  # fmt: skip
        info = info.adding(evaluation_sequences=sum(len(batch["input_ids"]) for batch in evaluation))
    return CalibrationData(evaluation, lambda seed: batched(drawn(seed), seed + 1), tokenizer, info, items)


def _images(model: PreTrainedModel, source: str, options: CalibrationOptions, pool_size: int) -> CalibrationData:
    processor = image_processor_of(source)
    pixels, labels, info = labelled_images_of(model, options.images, pool_size, processor)
    pool = [(pixels[place], None if labels is None else labels[place]) for place in range(len(pixels))]
    asked = None
    if options.eval_images is not None:
        others, known, _ = labelled_images_of(model, options.eval_images, options.sequences, processor)
        asked = [(others[place], None if known is None else known[place]) for place in range(len(others))]
        info = info.adding(evaluation_source=str(options.eval_images), labelled=known is not None)

    def batched(images: list[tuple[Tensor, Tensor | None]]) -> list[Batch]:
        known = [label for _, label in images if label is not None]
        stacked = torch.stack([image for image, _ in images])
        return list(image_batches(stacked, batch_size=options.batch_size, labels=torch.stack(known) if known else None))

    asked, calibration, info = _divided(pool, asked, options, info)
    return CalibrationData(batched(asked), lambda seed: batched(calibration(seed)), None, info)


def _audio(model: PreTrainedModel, source: str, options: CalibrationOptions, pool_size: int) -> CalibrationData:
    extractor = feature_extractor_of(source)
    pool = folder_windows(audio_folder(model, options), extractor, pool_size)
    info, asked = DataInfo(source=str(options.audio), unit="windows of audio"), None
    if options.eval_audio is not None:
        asked = folder_windows(options.eval_audio, extractor, options.sequences)
        info = info.adding(evaluation_source=str(options.eval_audio))

    def batched(windows: list[AudioWindow]) -> list[Batch]:
        return list(audio_batches(windows, extractor, batch_size=options.batch_size))

    asked, calibration, info = _divided(pool, asked, options, info)
    said = [window.transcript for window in asked if window.transcript is not None]
    transcripts = said if len(said) == len(asked) else None
    info = info.adding(labelled=transcripts is not None)
    return CalibrationData(batched(asked), lambda seed: batched(calibration(seed)), None, info, transcripts=transcripts)


def _divided(
    pool: list[T], asked: list[T] | None, options: CalibrationOptions, info: DataInfo
) -> tuple[list[T], Callable[[int], list[T]], DataInfo]:
    """What to evaluate on, a function from a seed to what to calibrate on, and how much of each there is."""
    wanted = options.calibration * options.batch_size
    if asked is None:
        wanted, held_out = _shrink(len(pool), wanted, options.sequences)
        asked = split_sequences(pool, calibration=wanted, evaluation=held_out)[1]
    else:
        wanted, held_out = min(wanted, len(pool)), 0

    def calibration(seed: int) -> list[T]:
        return split_sequences(pool, calibration=wanted, evaluation=held_out, seed=seed)[0]

    info = info.adding(
        calibration_sequences=wanted, evaluation_sequences=len(asked), batch_size=options.batch_size,
        to_choose_from=len(pool) - held_out,
    )  # fmt: skip
    return asked, calibration, info


def _shrink(total: int, calibration: int, evaluation: int) -> tuple[int, int]:
    """Less data than asked for is divided in the same proportion."""
    if total >= calibration + evaluation:
        return calibration, evaluation
    held_out = max(2, total * evaluation // (calibration + evaluation))
    if total - held_out < 1:
        raise QuietformerError(
            f"the data makes {total} sequences, images or windows of audio; at least 3 are needed to calibrate and evaluate"
        )
    return total - held_out, held_out


def wants_token_types(model: PreTrainedModel, tokenizer: Any) -> bool:
    """Whether the tokenizer hands the model token types, which an exported graph then takes as well."""
    accepted = inspect.signature(model.forward).parameters
    return "token_type_ids" in tokenizer.model_input_names and "token_type_ids" in accepted
