"""What projections read: the largest magnitude of each channel, a sample of rows, and the SmoothQuant scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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

    def watch(module: nn.Module, rows: Tensor) -> None:
        found = rows.abs().amax(0)
        largest[id(module)] = torch.maximum(largest[id(module)], found) if id(module) in largest else found

    watch_inputs(model, modules, batches, watch)
    return largest


def sampled_inputs(
    model: PreTrainedModel, modules: Sequence[nn.Module], batches: list[Batch], rows: int = 512
) -> dict[int, Tensor]:
    """About so many rows of the input of every module, evenly over the batches, by the id of the module."""
    kept: dict[int, list[Tensor]] = {}
    share = max(1, rows // max(1, len(batches)))

    def watch(module: nn.Module, found: Tensor) -> None:
        kept.setdefault(id(module), []).append(found[:: max(1, len(found) // share)][:share].clone())

    watch_inputs(model, modules, batches, watch)
    return {name: torch.cat(parts) for name, parts in kept.items()}


def watch_inputs(
    model: PreTrainedModel,
    modules: Sequence[nn.Module],
    batches: list[Batch],
    watch: Callable[[nn.Module, Tensor], None],
) -> None:
    """Run the batches and show what each module reads, one row a token."""

    def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        if args[0].numel():  # an expert may get no tokens
            watch(module, args[0].detach().flatten(0, -2))

    handles = [module.register_forward_pre_hook(hook) for module in modules]
    try:
        for batch in batches:
            run(model, batch)
    finally:
        for handle in handles:
            handle.remove()
