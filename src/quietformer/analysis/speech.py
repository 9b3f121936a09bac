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
from quietformer.architectures.forward import Batch, in_eval_mode
from quietformer.data.tokenizers import tokenizer_of
from quietformer.models.silence_transformers import silenced_transformers

ROOM = 2
"""So many times the tokens of the longest transcript may be generated: a broken model would go on to its limit."""

PROMPT = 8
"""Positions of a decoder that its prompt may take: the start, language and task."""


@dataclass(frozen=True)
class Transcriber:
    """The transcripts of some batches, and the decoder that writes others; None for a model whose logits are tokens (CTC)."""

    decoder: PreTrainedModel | None
    tokenizer: Any
    transcripts: list[str]

    def word_error_rate(self, run: Callable[[Batch], Mapping[str, Tensor]], batches: Iterable[Batch]) -> float:
        """Of what is written when `run` gives the encoder's output, or the logits of a CTC model."""
        written = [text for batch in batches for text in self._texts(run(batch))]
        return word_error_rate(written, self.transcripts)

    def _texts(self, output: Mapping[str, Tensor]) -> list[str]:
        if self.decoder is None:
            return list(self.tokenizer.batch_decode(output["logits"].argmax(-1)))
        room = ROOM * max(len(self.tokenizer(text)["input_ids"]) for text in self.transcripts)
        positions = getattr(self.decoder.config, "max_target_positions", None)
        room = room if positions is None else min(room, positions - PROMPT)
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
    """For an encoder that is part of a whole speech model, and for CTC models, where every window has a transcript."""
    if transcripts is None or (whole is None and "ForCTC" not in type(model).__name__):
        return None
    return Transcriber(whole, tokenizer_of(source), transcripts)
