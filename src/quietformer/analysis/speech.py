"""What a speech model writes down of what it hears, by greedy decoding, whoever runs its encoder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from quietformer.analysis.output_quality import word_error_rate
from quietformer.analysis.writing import first_tokens_of, writer_of
from quietformer.architectures.forward import Batch, has_decoder, in_eval_mode
from quietformer.data.first_tokens import FirstTokens
from quietformer.data.tokenizers import tokenizer_of
from quietformer.models.silence_transformers import silenced_transformers

ROOM = 2
"""So many times the tokens of the longest transcript may be generated: a broken model would go on to its limit."""

PROMPT = 8
"""Positions of a decoder that its prompt may take: the start, language and task."""


@dataclass(frozen=True)
class Transcriber:
    """The transcripts of some batches, and the decoder that writes others; None for a model whose logits are tokens (CTC).

    A whole model has its own decoder, which is measured with it.
    """

    decoder: PreTrainedModel | None
    tokenizer: Any
    transcripts: list[str]
    first: FirstTokens | None = None
    """What the decoder of a whole model is told; None for others."""

    def word_error_rate(self, run: Callable[[Batch], Mapping[str, Tensor]], batches: Iterable[Batch]) -> float:
        """Of what is written when `run` gives the encoder's output, or the logits of a CTC model."""
        written = [text for batch in batches for text in self._texts(run(batch))]
        return word_error_rate(written, self.transcripts)

    def word_error_rate_of(self, model: object, batches: Iterable[Batch]) -> float:
        """Of what a whole model writes, in torch or in a runtime."""
        assert self.first is not None
        write = writer_of(model, self.first)
        rows = [row for batch in batches for row in write(batch, self._room)]
        return word_error_rate(self.tokenizer.batch_decode(rows, skip_special_tokens=True), self.transcripts)

    @property
    def _room(self) -> int:
        return ROOM * max(len(self.tokenizer(text)["input_ids"]) for text in self.transcripts)

    def _texts(self, output: Mapping[str, Tensor]) -> list[str]:
        if self.decoder is None:
            return list(self.tokenizer.batch_decode(output["logits"].argmax(-1)))
        positions = getattr(self.decoder.config, "max_target_positions", None)
        room = self._room if positions is None else min(self._room, positions - PROMPT)
        states: Any = output["last_hidden_state"].to(self.decoder.dtype)
        with torch.no_grad(), in_eval_mode(self.decoder), silenced_transformers():
            generate: Any = self.decoder.generate
            tokens = generate(
                encoder_outputs=BaseModelOutput(states), do_sample=False, num_beams=1, max_new_tokens=room
            )
        return list(self.tokenizer.batch_decode(tokens, skip_special_tokens=True))


def transcriber_of(
    model: PreTrainedModel, whole: PreTrainedModel | None, source: str, transcripts: list[str] | None
) -> Transcriber | None:
    """For whole speech models, encoders that are a part of one, and CTC models, where every window has a transcript."""
    if transcripts is None:
        return None
    if has_decoder(model) and model.can_generate():
        return Transcriber(None, tokenizer_of(source), transcripts, first_tokens_of(model))
    if whole is None and "ForCTC" not in type(model).__name__:
        return None
    return Transcriber(whole, tokenizer_of(source), transcripts)
