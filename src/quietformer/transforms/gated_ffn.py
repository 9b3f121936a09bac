"""Rescales the hidden units of gated FFNs."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from quietformer.architectures.dataflow import Trace, trace
from quietformer.architectures.forward import Batch, in_eval_mode, run
from quietformer.transforms.channel_ranges import largest_inputs, smoothing

MASSIVE = 200.0
"""A unit whose largest value exceeds the median unit's by this factor creates or removes a massive activation."""

READING = ("projection", "add", "mul", "norm", "activation")
"""Steps that compute with a tensor, unlike a hook that only looks at it."""


def equalise_(model: PreTrainedModel, batches: Iterable[Batch], *, alpha: float = 0.5) -> int:
    """Move outliers of the hidden units of gated FFNs to the weights that read them, losslessly; returns the number of FFNs.

    A unit is gate * up: dividing the row of up and multiplying the column that reads it changes only the size of the unit.
    """
    units = _units(model, batches)
    with torch.no_grad():
        for up, down, largest in units:
            scale = smoothing(largest, down.weight.abs().amax(0), alpha).to(down.weight)
            _scale_units_(up, 1 / scale)
            down.weight.mul_(scale)
    return len(units)


def damp_(model: PreTrainedModel, batches: Iterable[Batch], factor: float) -> int:
    """Multiply the massive units of gated FFNs by a factor, which changes the model a little; returns their number."""
    units, found = _units(model, batches), 0
    if not units:
        return 0
    usual = torch.cat([largest for _, _, largest in units]).median()
    with torch.no_grad():
        for up, _, largest in units:
            massive = largest > MASSIVE * usual
            _scale_units_(up, torch.where(massive, factor, 1.0).to(up.weight))
            found += int(massive.sum())
    return found


def _scale_units_(up: nn.Linear, scale: Tensor) -> None:
    up.weight.mul_(scale[:, None])
    if up.bias is not None:
        up.bias.mul_(scale)


def _units(model: PreTrainedModel, batches: Iterable[Batch]) -> list[tuple[nn.Linear, nn.Linear, Tensor]]:
    """For every gated FFN: its up projection, its down projection, and the largest magnitude of each unit."""
    batches = [{name: tensor for name, tensor in batch.items() if name != "labels"} for batch in batches]
    few = {name: tensor[:2] for name, tensor in batches[0].items()}
    with in_eval_mode(model), torch.no_grad():
        pairs = _gated(trace(model, lambda: run(model, few)))
        largest = largest_inputs(model, [down for _, down in pairs], batches)
    return [(up, down, largest[id(down)]) for up, down in pairs]


def _gated(seen: Trace) -> list[tuple[nn.Linear, nn.Linear]]:
    """The up and down projections of gated FFNs: the projections around a product with an activation."""
    pairs = []
    for step in seen.steps:
        if step.kind != "projection" or not isinstance(step.module, nn.Linear):
            continue
        for _, product in (found for source in step.sources for found in seen.origins(source)):
            others = [reader for reader in seen.readers(seen.steps.index(product)) if reader.kind in READING]
            if product.kind != "mul" or len(others) != 1:
                continue
            origins = [found for source in product.sources for found in seen.origins(source)]
            ups = [other.module for _, other in origins if other.kind == "projection"]
            if len(origins) == 2 and len(ups) == 1 and isinstance(ups[0], nn.Linear):
                pairs.append((ups[0], step.module))
    return pairs
