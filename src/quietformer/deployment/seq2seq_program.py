"""An encoder-decoder as three exported graphs: its encoder, the first step of its decoder, and every further one."""

# B batch, T new tokens, P tokens in the cache, E places that the encoder gives

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from quietformer.architectures.forward import Batch, in_eval_mode, run
from quietformer.deployment.cache_names import (
    BATCH,
    ENCODED,
    ENCODER_MASK,
    MASK,
    NEW,
    PAST,
    PRESENT_PREFIX,
    STATES,
    TOTAL,
    past_names,
    present_names,
)
from quietformer.deployment.torch_program import WrappedModel, exported_program, name_dimensions
from quietformer.errors import QuietformerError

PARTS = ("decoder.key", "decoder.value", "encoder.key", "encoder.value")
LOGITS, HIDDEN, DECODED = "logits", "last_hidden_state", "decoder_input_ids"


@dataclass(frozen=True)
class Seq2SeqGraphs:
    """With marks where quantizers stand."""

    encoder: ir.Model
    first: ir.Model
    """Without a past; gives the keys and values of what the encoder gave, too."""
    further: ir.Model
    """With a past."""


@dataclass(frozen=True)
class _Example:
    """What the decoder takes, to trace with."""

    tokens_BT: Tensor
    states_BEF: Tensor
    mask_BE: Tensor | None
    kept: list[Tensor]
    """Keys and values of the tokens and of the encoder's output, layer by layer."""

    @property
    def names(self) -> list[str]:
        return [f"{layer}.{part}" for layer in range(len(self.kept) // len(PARTS)) for part in PARTS]

    @property
    def given(self) -> dict[str, Tensor]:
        mask = {} if self.mask_BE is None else {ENCODER_MASK: self.mask_BE}
        return {**mask, "input_ids": self.tokens_BT, STATES: self.states_BEF}


def seq2seq_graphs(model: PreTrainedModel, batch: Batch) -> Seq2SeqGraphs:
    """Export by torch; batch, tokens and what the decoder has read are free, and the encoder's places where it lets them be."""
    inputs = {name: tensor for name, tensor in batch.items() if not name.startswith("decoder_")}
    example = _example(model, inputs, batch[DECODED])
    return Seq2SeqGraphs(_encoder(model, inputs), _first(model, example), _further(model, example))


def _example(model: PreTrainedModel, inputs: Batch, tokens_BT: Tensor) -> _Example:
    tokens_BT = tokens_BT[:, :4] if tokens_BT.shape[1] >= 3 else tokens_BT.repeat(1, 3)[:, :3]
    with in_eval_mode(model), torch.no_grad():
        found = run(model, {**inputs, DECODED: tokens_BT, "use_cache": True})  # type: ignore[dict-item]
    cache, name = getattr(found, "past_key_values", None), type(model).__name__
    if not isinstance(cache, EncoderDecoderCache):
        raise QuietformerError(
            f"{name} cannot be exported: its decoder keeps no keys and values that transformers knows"
        )
    sides = (cache.self_attention_cache.layers, cache.cross_attention_cache.layers)
    kept = [
        getattr(layer, part, None) for pair in zip(*sides, strict=True) for layer in pair for part in ("keys", "values")
    ]
    tensors = [tensor for tensor in kept if isinstance(tensor, Tensor) and tensor.dim() == 4]
    if not tensors or len(tensors) != len(kept):
        raise QuietformerError(
            f"{name} cannot be exported: a layer of its decoder keeps something else than keys and values"
        )
    mask = inputs.get(MASK) if "input_ids" in inputs else None
    return _Example(tokens_BT, found.encoder_last_hidden_state, mask, tensors)


def _kept(cache: Any) -> list[tuple[Tensor, Tensor]]:
    return [(layer.keys, layer.values) for layer in cache.layers]


class _Encoder(WrappedModel):
    """The encoder by the names of its inputs."""

    def __init__(self, model: PreTrainedModel, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Tensor) -> Tensor:
        states: Tensor = self.model.get_encoder()(**dict(zip(self.names, inputs, strict=True))).last_hidden_state
        return states


def _encoder(model: PreTrainedModel, inputs: Batch) -> ir.Model:
    accepted = inspect.signature(model.get_encoder().forward).parameters
    given = {name: tensor for name, tensor in inputs.items() if name in accepted}
    free = torch.export.Dim.DYNAMIC
    shapes = tuple({0: free, 1: free} if tensor.dim() == 2 else {0: free} for tensor in given.values())
    graph = exported_program(_Encoder(model, list(given)), given, (shapes,), [HIDDEN])
    name_dimensions(graph)
    return graph


class _Decoder(WrappedModel):
    """The decoder and the head; gives logits, keys and values."""

    def __init__(self, model: PreTrainedModel, *, masked: bool, begun: bool) -> None:
        super().__init__()
        self.model, self.masked, self.begun = model, masked, begun

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        mask, rest = (inputs[0], inputs[1:]) if self.masked else (None, inputs)
        tokens, states, *past = rest
        cache = EncoderDecoderCache(*(DynamicCache(ddp_cache_data=self._side(past, begin)) for begin in (0, 2)))
        named: dict[str, Any] = {} if mask is None else {MASK: mask}
        found = self.model(
            encoder_outputs=BaseModelOutput(last_hidden_state=states),  # type: ignore[arg-type]
            decoder_input_ids=tokens, past_key_values=cache, use_cache=True, **named,
        )  # fmt: skip
        sides = [_kept(cache.self_attention_cache)]
        if not self.begun:  # else keys and values of the encoder's output are as they were given
            sides.append(_kept(cache.cross_attention_cache))
        return found.logits, *(part for pairs in zip(*sides, strict=True) for pair in pairs for part in pair)

    def _side(self, past: list[Tensor], begin: int) -> list[tuple[Tensor, Tensor]] | None:
        step = len(PARTS)
        return [(past[place], past[place + 1]) for place in range(begin, len(past), step)] or None


def _first(model: PreTrainedModel, example: _Example) -> ir.Model:
    given = example.given
    graph = exported_program(
        _Decoder(model, masked=ENCODER_MASK in given, begun=False),
        given, (_shapes(list(given.values())),), [LOGITS, *present_names(example.names)],
    )  # fmt: skip
    _name_dimensions(graph)
    return graph


def _further(model: PreTrainedModel, example: _Example) -> ir.Model:
    """One token more; all sizes differ, so that the exporter does not take two for the same."""
    given = example.given | {"input_ids": example.tokens_BT[:, :2]}
    given |= dict(zip(past_names(example.names), example.kept, strict=True))
    own = [name for name in example.names if "encoder" not in name]
    graph = exported_program(
        _Decoder(model, masked=ENCODER_MASK in given, begun=True),
        given, (_shapes(list(given.values())),), [LOGITS, *present_names(own)],
    )  # fmt: skip
    _name_dimensions(graph)
    return graph


def _shapes(tensors: list[Tensor]) -> tuple[dict[int, Any], ...]:
    free = torch.export.Dim.DYNAMIC
    axes = {2: (0, 1), 3: (0, 1), 4: (0, 2)}
    return tuple(dict.fromkeys(axes[tensor.dim()], free) for tensor in tensors)


def _name_dimensions(model: ir.Model) -> None:
    """As optimum names them; transformers.js makes an empty cache from these names."""
    for value in (*model.graph.inputs, *model.graph.outputs):
        sizes: list[Any] = list(value.shape or ())
        name = value.name or ""
        sizes[0] = BATCH
        if len(sizes) == 4:
            free = ENCODED if "encoder" in name else TOTAL if name.startswith(PRESENT_PREFIX) else PAST
            sizes[2] = free
        else:
            sizes[1] = ENCODED if name in (STATES, ENCODER_MASK) else NEW
        value.shape = ir.Shape(sizes)
