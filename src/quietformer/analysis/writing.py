"""What an encoder-decoder writes by itself, greedily; and the same as input of its decoder, to calibrate and measure on."""

# B batch, T tokens, V vocabulary

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from quietformer.architectures.forward import AUDIBLE, Batch, fitting, has_decoder, in_eval_mode
from quietformer.architectures.layout import output_embeddings
from quietformer.config.options.generate import GenerationOptions
from quietformer.data.calibration_data import CalibrationData
from quietformer.data.first_tokens import FirstTokens, first_tokens
from quietformer.errors import QuietformerError
from quietformer.quant.calibration import full_precision

LONGEST = 64
"""Tokens that a decoder writes of one text or window of audio, to be calibrated on."""

Write = Callable[[Batch, int], list[list[int]]]
"""At most so many tokens of each row of a batch."""

DECODED, DECODED_MASK = "decoder_input_ids", "decoder_attention_mask"


def first_tokens_of(model: PreTrainedModel) -> FirstTokens:
    """As the model's configs say; of several languages the most likely one is taken."""
    told: dict[str, Any] = model.config.to_dict()
    if model.generation_config is not None:
        told |= {name: value for name, value in model.generation_config.to_dict().items() if value is not None}
    words: Any = output_embeddings(model)
    if words is None:
        raise QuietformerError(f"{type(model).__name__} has no head that writes tokens")
    return first_tokens(told, words.weight.shape[0])


def written(model: PreTrainedModel, batch: Batch, room: int) -> list[list[int]]:
    """The tokens of each row behind the prompt, up to one that ends it, which is included."""
    first = first_tokens_of(model)
    return [row[len(first.prompt) :] for row in _rows(model, batch, first, room)]


def writer_of(model: object, first: FirstTokens) -> Write:
    """How a model writes greedily, in torch or in a runtime that has such a method."""
    if isinstance(model, PreTrainedModel):
        return lambda batch, room: written(model, batch, room)
    runtime: Any = model
    return lambda batch, room: list(runtime.written(batch, first, GenerationOptions(max_new_tokens=room)))


def with_decoder_inputs(model: PreTrainedModel, data: CalibrationData) -> CalibrationData:
    """For an encoder-decoder that writes: what it writes in full precision is what its decoder reads."""
    if not has_decoder(model) or not model.can_generate():
        return data
    known: dict[int, list[Batch]] = {}

    def calibration(seed: int) -> list[Batch]:
        if seed not in known:
            known.clear()
            known[seed] = [read_by_decoder(model, batch) for batch in data.calibration(seed)]
        return known[seed]

    evaluation = [read_by_decoder(model, batch) for batch in data.evaluation]
    return dataclasses.replace(data, evaluation=evaluation, calibration=calibration)


def read_by_decoder(model: PreTrainedModel, batch: Batch, room: int = LONGEST) -> Batch:
    """The batch with prompts and what the model writes; rows that end early are padded on the right."""
    first = first_tokens_of(model)
    with full_precision(model):
        rows = _rows(model, batch, first, room)
    rows = [row[:-1] if row[-1] in first.ends and len(row) > len(first.prompt) else row for row in rows]
    longest = max(map(len, rows))
    tokens = torch.full((len(rows), longest), first.padding)
    mask = torch.zeros(len(rows), longest, dtype=torch.int64)
    for place, row in enumerate(rows):
        tokens[place, : len(row)] = torch.tensor(row)
        mask[place, : len(row)] = 1
    inputs = {name: tensor for name, tensor in batch.items() if name not in ("labels", AUDIBLE, "token_type_ids")}
    masked = DECODED_MASK in inspect.signature(model.forward).parameters
    return {**inputs, DECODED: tokens, **({DECODED_MASK: mask} if masked else {})}


def _rows(model: PreTrainedModel, batch: Batch, first: FirstTokens, room: int) -> list[list[int]]:
    """Prompts and what follows them."""
    room = first.longest(room)
    with in_eval_mode(model), torch.no_grad():
        step = _steps(model, batch)
        count = len(next(iter(batch.values())))
        tokens_BT = torch.tensor([first.prompt] * count)
        if first.languages:
            logits_BV = _steps(model, batch)(tokens_BT[:, :1])
            allowed = torch.tensor(first.languages)
            tokens_BT[:, 1] = allowed[logits_BV[:, allowed].argmax(-1)]
        rows, running, new = tokens_BT.tolist(), set(range(count)), tokens_BT
        for place in range(room):
            logits_BV = step(new)
            logits_BV[:, [*first.never, *(() if place else first.never_first)]] = -torch.inf
            new = logits_BV.argmax(-1)[:, None]
            for row in sorted(running):
                rows[row].append(int(new[row]))
            running -= {row for row in running if rows[row][-1] in first.ends}
            if not running:
                break
    return rows


def _steps(model: PreTrainedModel, batch: Batch) -> Callable[[Tensor], Tensor]:
    """A function from further tokens (B, T) to the logits (B, V) of the last."""
    encoder: Any = model.get_encoder()
    accepted = inspect.signature(encoder.forward).parameters
    given = {name: tensor for name, tensor in fitting(encoder, batch).items() if name in accepted}
    found, cache = encoder(**given), None
    mask = {} if "attention_mask" not in given else {"attention_mask": given["attention_mask"]}

    def step(tokens_BT: Tensor) -> Tensor:
        nonlocal cache
        made: Any = model(
            encoder_outputs=found,
            decoder_input_ids=tokens_BT.to(model.device),
            past_key_values=cache,
            use_cache=True,
            **mask,
        )
        cache = made.past_key_values
        logits_BV: Tensor = made.logits[:, -1].float().cpu()
        return logits_BV

    return step
