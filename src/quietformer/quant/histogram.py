"""Histograms by the leading bits of float32 values: bins of equal relative width, mergeable, with no range given in advance."""

from __future__ import annotations

import math

import torch
from torch import Tensor

COARSE_BITS = 6
"""Mantissa bits that `histogram` keeps by default: bins 1/64 of the value wide."""

COARSE_BINS = 2 << (8 + COARSE_BITS)

FINE_BITS = 8
"""Mantissa bits that `Histogram` keeps: bins 1/256 = 0.39 % of the value wide."""

OCTAVES = 24
"""Octaves below the largest magnitude that `Histogram` separates from zero; smaller values vanish in float32 sums."""

CHUNK = 1 << 20  # number of values processed at once, so that they stay in the cache


def histogram(x: Tensor, mantissa_bits: int = COARSE_BITS) -> Tensor:
    """Counts by leading bits; the sum of two histograms is the histogram of both data sets.

    The first half counts the negative values and the second the others, each from the smallest magnitude on.
    """
    shift = 23 - mantissa_bits
    half = 1 << (31 - shift)
    bits = x.detach().float().contiguous().view(torch.int32).flatten()
    # Arithmetic shift keeps the sign: codes run from -half to half - 1 before the addition.
    parts = (torch.bincount((part >> shift).add_(half), minlength=2 * half) for part in torch.split(bits, CHUNK))
    counts = next(parts)
    for more in parts:
        counts += more
    return counts


def magnitudes(first: int, last: int, mantissa_bits: int) -> Tensor:
    """The magnitudes at which the bins `first` to `last` of either half begin, float64."""
    codes = torch.arange(first, last + 1, dtype=torch.int32) << (23 - mantissa_bits)
    return codes.view(torch.float32).double().nan_to_num(posinf=torch.finfo(torch.float32).max)


def value_at_rank(low: Tensor, high: Tensor, counts: Tensor, rank: int) -> float:
    """The value of that rank (from 0), from bins in ascending order, with values spread evenly over their bin."""
    upto = counts.cumsum(0)
    index = int(torch.searchsorted(upto, torch.tensor(rank), right=True))
    inside = (rank - int(upto[index] - counts[index]) + 0.5) / int(counts[index])
    return float(low[index] + (high[index] - low[index]) * inside)


def histogram_quantile(counts: Tensor, q: float) -> float:
    """The q-quantile, accurate to the width of a bin."""
    half = len(counts) // 2
    edges = magnitudes(0, half, half.bit_length() - 9)
    low, high = torch.cat([-edges[1:].flip(0), edges[:-1]]), torch.cat([-edges[:-1].flip(0), edges[1:]])
    ascending = torch.cat([counts[:half].flip(0), counts[half:]])
    return value_at_rank(low, high, ascending, math.floor(q * (int(counts.sum()) - 1)))


class Histogram:
    """A fine histogram of all values seen, down to 2^-24 of the largest magnitude, in a fixed 100 KB.

    Bins nest, so the result does not depend on the order of the data or on how it is split.
    """

    span = OCTAVES << FINE_BITS

    def __init__(self) -> None:
        self.counts = torch.zeros(2, self.span, dtype=torch.int64)  # negative and positive, by magnitude
        self.near_zero = 0
        self.top = self.span  # the code just above the largest magnitude
        self.minimum, self.maximum = math.inf, -math.inf

    @property
    def count(self) -> int:
        return self.near_zero + int(self.counts.sum())

    @property
    def edges(self) -> Tensor:
        """Where the bins begin and the last one ends, as magnitudes."""
        return magnitudes(self.top - self.span, self.top, FINE_BITS)

    def add_(self, x: Tensor, minimum: float, maximum: float) -> None:
        """Add values, whose extremes the caller knows."""
        counts = histogram(x, FINE_BITS).view(2, -1).cpu()
        self._raise_(_code(max(-minimum, maximum)) + 1)
        window = counts[:, self.top - self.span : self.top]
        self.counts += window
        self.near_zero += x.numel() - int(window.sum())
        self._widen_(minimum, maximum)

    def quantile(self, q: float) -> float:
        """The q-quantile by numpy's definition, each value accurate to the width of its bin."""
        edges, zero = self.edges, torch.zeros(1, dtype=torch.float64)
        low = torch.cat([-edges[1:].flip(0), zero, edges[:-1]]).clamp(self.minimum, self.maximum)
        high = torch.cat([-edges[:-1].flip(0), zero, edges[1:]]).clamp(self.minimum, self.maximum)
        counts = torch.cat([self.counts[0].flip(0), torch.tensor([self.near_zero]), self.counts[1]])
        rank, last = q * (self.count - 1), self.count - 1
        below, above = math.floor(rank), math.ceil(rank)
        ends = {0: self.minimum, last: self.maximum}  # these two are known exactly
        lower, upper = (ends.get(at, value_at_rank(low, high, counts, at)) for at in (below, above))
        return lower + (upper - lower) * (rank - below)

    def _raise_(self, top: int) -> None:
        """Move the window of magnitudes up; values that fall below it count as zero."""
        if (lost := min(top - self.top, self.span)) > 0:
            self.near_zero += int(self.counts[:, :lost].sum())
            self.counts = torch.cat([self.counts[:, lost:], torch.zeros_like(self.counts[:, :lost])], dim=1)
            self.top = top

    def _widen_(self, minimum: float, maximum: float) -> None:
        self.minimum, self.maximum = min(self.minimum, minimum), max(self.maximum, maximum)


def _code(magnitude: float) -> int:
    return int(torch.tensor(magnitude, dtype=torch.float32).view(torch.int32)) >> (23 - FINE_BITS)
