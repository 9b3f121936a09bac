"""The largest magnitude of each channel, and the SmoothQuant scale computed from it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from quietformer.architectures.forward import Batch, run


def smoothing(largest_input: Tensor, largest_weight: Tensor, alpha: float) -> Tensor:
    """The scale s_j of every channel, in float64; 1 for a channel that is always zero or never read."""
    x, w = largest_input.double(), largest_weight.double()
    return torch.where((x > 0) & (w > 0), x**alpha / w ** (1 - alpha), 1.0)


def largest_inputs(model: PreTrainedModel, modules: Sequence[nn.Module], batches: list[Batch]) -> dict[int, Tensor]:
    """max|X_j| of the input of every module over all batches, by the id of the module."""
    largest: dict[int, Tensor] = {}

    def watch(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        if not args[0].numel():
            return  # an expert without tokens
        found = args[0].detach().abs().flatten(0, -2).amax(0)
        largest[id(module)] = torch.maximum(largest[id(module)], found) if id(module) in largest else found

    handles = [module.register_forward_pre_hook(watch) for module in modules]
    try:
        for batch in batches:
            run(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return largest
