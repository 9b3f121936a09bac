"""What projections read: the largest magnitude of each channel, a sample of rows, and the SmoothQuant scale."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from quietformer.architectures.forward import Batch, run
from quietformer.architectures.watch_inputs import watching_inputs


def smoothing(largest_input: Tensor, largest_weight: Tensor, alpha: float) -> Tensor:
    """The scale s_j of every channel, in float64; 1 for a channel that is always zero or never read."""
    x, w = largest_input.double(), largest_weight.double()
    return torch.where((x > 0) & (w > 0), x**alpha / w ** (1 - alpha), 1.0)


@dataclass
class ReadInput:
    """What a projection reads: max|X_j| of every channel, and a sample of rows."""

    largest: Tensor
    rows: list[Tensor] = field(default_factory=list)

    @property
    def sample(self) -> Tensor:
        return torch.cat(self.rows)


SAMPLED = 512
"""Rows of a sample, evenly over the batches."""


def largest_inputs(model: PreTrainedModel, modules: Sequence[nn.Module], batches: list[Batch]) -> dict[int, Tensor]:
    """max|X_j| of the input of every module over all batches, by the id of the module."""
    return {name: found.largest for name, found in read_inputs(model, modules, batches, rows=0).items()}


def read_inputs(
    model: PreTrainedModel, modules: Sequence[nn.Module], batches: list[Batch], *, rows: int
) -> dict[int, ReadInput]:
    """What every module reads over all batches, with a sample of about so many rows, by the id of the module."""
    with reading_inputs(modules, rows=rows, batches=len(batches)) as found:
        for batch in batches:
            run(model, batch)
    return found


@contextlib.contextmanager
def reading_inputs(modules: Sequence[nn.Module], *, rows: int, batches: int) -> Iterator[dict[int, ReadInput]]:
    """The same of what is run inside the context, which is to be so many batches."""
    found: dict[int, ReadInput] = {}
    share = max(1, rows // max(1, batches))

    def watch(module: nn.Module, seen: Tensor) -> None:
        largest = seen.abs().amax(0)
        kept = found.setdefault(id(module), ReadInput(largest))
        kept.largest = torch.maximum(kept.largest, largest)
        if rows:
            kept.rows.append(seen[:: max(1, len(seen) // share)][:share].clone())

    with watching_inputs(modules, watch):
        yield found
