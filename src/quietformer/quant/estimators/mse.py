"""MSE: the range with the smallest mean squared quantization error."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from quietformer.config.quantization import EstimatorSpec, estimators
from quietformer.quant.affine import levels
from quietformer.quant.estimators.base import ChannelRanges, RangeEstimator, extremes
from quietformer.quant.estimators.mse_binned import BinnedError
from quietformer.quant.estimators.mse_rows import RowsError, RowsErrorAtBestZeroPoint
from quietformer.quant.estimators.mse_search import ErrorOfSteps, best_steps
from quietformer.quant.histogram import Histogram

FEW = 1 << 14
"""Up to this many values are kept: the error curve of few values is too jagged to be found from a histogram."""

ROWS_AT_ONCE = 1 << 22  # number of weight values searched at once, which bounds the memory

LAST_BITS_WITH_EVERY_ZERO_POINT = 8

FEW_LEVELS_BITS = 4


@dataclass(frozen=True)
class Extent:
    """The values to be quantized, in numbers, one per row: their range, which includes zero, and the mean of nonzero |x|."""

    lo: Tensor
    hi: Tensor
    mean: Tensor


@dataclass(frozen=True)
class RangeSearch:
    """A search for the range of least squared error on one kind of grid."""

    bits: int
    symmetric: bool
    candidates: int

    def of_rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The best range of each row, from its values."""
        unit = torch.linalg.vector_norm(rows, ord=torch.inf, dim=1)
        unit = torch.where(unit > 0, unit, 1.0)
        x = rows / unit[:, None]  # so that squares and reciprocals of steps stay within float32
        lo, hi = (end.double() for end in torch.aminmax(x, dim=1))
        lo, hi = lo.clamp(max=0.0), hi.clamp(min=0.0)
        mean = x.abs().sum(1, dtype=torch.float64) / x.count_nonzero(1).clamp(min=1)
        error: ErrorOfSteps
        if self.symmetric:
            error = RowsError(x, torch.full_like(lo, 2 ** (self.bits - 1)), bits=self.bits)
        elif self.bits <= LAST_BITS_WITH_EVERY_ZERO_POINT:
            error = RowsErrorAtBestZeroPoint(x, bits=self.bits)
        else:  # a grid this fine clips almost nothing: the zero point of the full range is good enough
            error = RowsError(x, (-lo / (hi - lo).clamp(min=1e-9) * levels(self.bits)).round(), bits=self.bits)
        # Rounding phases are practically random, which makes the mean square of n values jagged by 0.9 / sqrt(n).
        noise = 0.01 + 3 / math.sqrt(x.shape[1])
        lo, hi = self._best(error, Extent(lo, hi, mean), noise)
        return lo * unit, hi * unit

    def of_histogram(self, histogram: Histogram) -> tuple[Tensor, Tensor]:
        """The best range of all values counted, as tensors of one element."""
        error = BinnedError(histogram, bits=self.bits, symmetric=self.symmetric)
        lo, hi = torch.tensor([[histogram.minimum], [histogram.maximum]], dtype=torch.float64)
        extent = Extent(lo.clamp(max=0.0), hi.clamp(min=0.0), error.mean_magnitude)
        # Where many values share a bin, the curve stays jagged however many values there are.
        return self._best(error, extent, noise=0.1)

    def _best(self, error: ErrorOfSteps, extent: Extent, noise: float) -> tuple[Tensor, Tensor]:
        half, most = 2 ** (self.bits - 1), levels(self.bits)
        lo, hi, mean = extent.lo, extent.hi, extent.mean
        usual = torch.maximum(-lo, hi) / (half - 1) if self.symmetric else (hi - lo) / most
        usual = torch.where(usual > 0, usual, 1.0)
        # A grid that ends at half the mean magnitude clips nearly everything. One that ends a little beyond the data may
        # have its levels where many values are.
        shortest = torch.minimum(torch.where(mean > 0, mean / (2 * most), 1.0), usual)
        longest = usual * (1.05 + 2 / most)
        # With few levels the error curve has hills and valleys everywhere; with many levels only its bottom is rough.
        over_all = self.candidates * 2 // 3 if self.bits <= FEW_LEVELS_BITS else self.candidates // 3
        counts = over_all, self.candidates - over_all
        step, zero_point = best_steps(error, shortest, longest, usual, counts=counts, noise=noise)
        step = torch.where(lo < hi, step, 0.0)  # all values are zero: any step is right, and none is needed
        if self.symmetric:
            return -(half - 1) * step, (half - 1) * step
        return -zero_point * step, (most - zero_point) * step


class MSEEstimator(RangeEstimator):
    """Keeps the values while they are few and a histogram of them after that; searches at the end."""

    def __init__(self, candidates: int, *, bits: int, symmetric: bool) -> None:
        super().__init__(bits=bits, symmetric=symmetric)
        self.search = RangeSearch(bits, symmetric, candidates)
        self.few: list[Tensor] | None = []
        self.histogram = Histogram()
        self.device: torch.device | None = None

    def _observe(self, x: Tensor) -> None:
        lo, hi = extremes(x, None)
        self.device = x.device
        if self.few is not None:
            if sum(map(len, self.few)) + x.numel() <= FEW:
                self.few.append(x.flatten().clone())  # a clone, since the owner may overwrite it
                return
            for earlier in self.few:
                self._count(earlier, *extremes(earlier, None))
            self.few = None
        self._count(x, lo, hi)

    def _count(self, x: Tensor, lo: Tensor, hi: Tensor) -> None:
        self.histogram.add_(x, float(lo), float(hi))

    def _range(self) -> tuple[Tensor, Tensor]:
        if self.few is not None:
            row = torch.cat(self.few).sort().values[None]  # sorted: sums must not depend on the order of the batches
            lo, hi = self.search.of_rows(row)
        else:
            lo, hi = self.search.of_histogram(self.histogram)
        return lo[0].to(self.device), hi[0].to(self.device)


class ChannelMSEEstimator(ChannelRanges):
    """Searches the range of each row, some rows at a time."""

    def __init__(self, candidates: int, *, bits: int, symmetric: bool, axis: int) -> None:
        super().__init__(bits=bits, symmetric=symmetric, axis=axis)
        self.search = RangeSearch(bits, symmetric, candidates)

    def _ranges(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        parts = [self.search.of_rows(some) for some in torch.split(rows, max(1, ROWS_AT_ONCE // rows.shape[1]))]
        return torch.cat([lo for lo, _ in parts]), torch.cat([hi for _, hi in parts])


@estimators.register("mse")
class MSE(EstimatorSpec):
    """The range of least mean squared error at the given bits, found by search."""

    candidates: int = Field(default=100, ge=10, description="approximate number of step sizes tried")

    def build(self, *, bits: int, symmetric: bool, axis: int | None = None) -> RangeEstimator:
        if axis is None:
            return MSEEstimator(self.candidates, bits=bits, symmetric=symmetric)
        return ChannelMSEEstimator(self.candidates, bits=bits, symmetric=symmetric, axis=axis)
