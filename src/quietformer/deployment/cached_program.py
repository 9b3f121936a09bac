"""A model that writes token by token as one exported graph: prefill and decode, with past keys and values in and out."""

# B batch, T new tokens, P tokens in the cache

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from quietformer.architectures.forward import Batch, in_eval_mode, run
from quietformer.architectures.task import task_of
from quietformer.deployment.cache_names import BATCH, MASK, NEW, PAST, POSITIONS, TOTAL, past_names, present_names
from quietformer.deployment.last_logits import WANTED, count_last_logits_
from quietformer.deployment.torch_program import WrappedModel, exported_program

PARTS = ("key", "value")


@dataclass(frozen=True)
class CacheShape:
    """Key/value heads and features per head of everything that is kept, and what it is called."""

    sizes: tuple[tuple[int, int], ...]
    names: tuple[str, ...]
    """`0.key`, `0.value`, `1.key`, ..."""

    def past(self, batch: int, length: int) -> list[Tensor]:
        """Keys and values to trace with."""
        generator = torch.Generator().manual_seed(0)
        return [torch.randn(batch, heads, length, features, generator=generator) for heads, features in self.sizes]


def cache_shape(model: PreTrainedModel, example: Batch) -> CacheShape | None:
    """What the model keeps of the tokens it has read; None if it does not generate, or keeps something else."""
    accepted = inspect.signature(model.forward).parameters
    if task_of(model) != "causal" or not model.can_generate() or not {"past_key_values", "use_cache"} <= set(accepted):
        return None
    with in_eval_mode(model), torch.no_grad():
        cache = getattr(run(model, {**example, "use_cache": True}), "past_key_values", None)  # type: ignore[dict-item]
    if not isinstance(cache, DynamicCache):
        return None
    kept = [getattr(layer, part, None) for layer in cache.layers for part in ("keys", "values")]
    found = [tensor for tensor in kept if isinstance(tensor, Tensor) and tensor.dim() == 4]
    if not found or len(found) != len(kept):
        return None
    names = tuple(f"{layer}.{part}" for layer in range(len(cache.layers)) for part in PARTS)
    return CacheShape(tuple((tensor.shape[1], tensor.shape[3]) for tensor in found), names)


class _WithCache(WrappedModel):
    """The model by the names of its inputs and of its past; gives the output and the keys and values of all tokens."""

    def __init__(self, model: PreTrainedModel, output: str, optional: list[str]) -> None:
        super().__init__()
        self.model = model
        self.output = output
        self.optional = optional

    def forward(self, input_ids: Tensor, attention_mask: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        named: dict[str, Any] = dict(zip(self.optional, rest, strict=False))
        past = rest[len(self.optional) :]
        pairs = [(past[place], past[place + 1]) for place in range(0, len(past), 2)]
        # Without the model's config every layer keeps all tokens: a sliding window is a matter of the mask.
        cache = DynamicCache(ddp_cache_data=pairs)
        result = self.model(
            input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True, **named
        )
        kept = [tensor for layer in result.past_key_values.layers for tensor in (layer.keys, layer.values)]
        return (getattr(result, self.output), *kept)


def _optional_inputs(model: PreTrainedModel) -> list[str]:
    """Models with relative positions take none; which logits are wanted can be said to most."""
    accepted = inspect.signature(model.forward).parameters
    return [name for name in (POSITIONS, WANTED) if name in accepted]


def cached_program(model: PreTrainedModel, example: Batch, shape: CacheShape, output: str) -> ir.Model:
    """Export by torch, with marks where quantizers stand; batch, new tokens and cached tokens are free."""
    tokens_BT = example["input_ids"][:2, :4]
    batch, length = tokens_BT.shape
    past = length + 3  # sizes that are all different, so that the exporter does not take two for the same
    optional = _optional_inputs(model)
    given = {POSITIONS: torch.arange(past, past + length).repeat(batch, 1), WANTED: torch.arange(length - 1)}
    inputs = {
        "input_ids": tokens_BT,
        MASK: torch.ones(batch, past + length, dtype=torch.int64),
        **{name: given[name] for name in optional},
        **dict(zip(past_names(shape.names), shape.past(batch, past), strict=True)),
    }
    free = torch.export.Dim.DYNAMIC
    axes = {1: (0,), 2: (0, 1), 4: (0, 2)}
    shapes = tuple(dict.fromkeys(axes[tensor.dim()], free) for tensor in inputs.values())
    wrapped = _WithCache(model, output, optional)
    graph = exported_program(wrapped, inputs, (shapes[0], shapes[1], shapes[2:]), [output, *present_names(shape.names)])
    if WANTED in optional:
        count_last_logits_(graph)
    _name_dimensions(graph)
    return graph


def _name_dimensions(model: ir.Model) -> None:
    """As optimum names them; transformers.js makes an empty cache from these names."""
    for value in (*model.graph.inputs, *model.graph.outputs):
        sizes: list[Any] = list(value.shape or ())
        name = value.name or ""
        if not sizes:
            continue
        sizes[0] = BATCH
        if len(sizes) == 4:
            sizes[2] = TOTAL if name.startswith("present") else PAST
        else:
            sizes[1] = TOTAL if name == MASK else NEW
        value.shape = ir.Shape(sizes)
