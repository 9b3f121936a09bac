"""MSE: the range whose quantization errs least in the mean square."""

from __future__ import annotations

import math

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
"""Up to so many values are kept: the error curve of few values is jagged, and only they themselves can tell its least."""

ROWS_AT_ONCE = 1 << 22  # values of a weight searched side by side, which bounds the memory

LAST_BITS_WITH_EVERY_ZERO_POINT = 8

FEW_LEVELS_BITS = 4


class MSEEstimator(RangeEstimator):
    """Keeps the values while they are few and a histogram of them after that; the search comes at the end."""

    def __init__(self, candidates: int, *, bits: int, symmetric: bool) -> None:
        super().__init__(bits=bits, symmetric=symmetric)
        self.candidates = candidates
        self.few: list[Tensor] | None = []
        self.histogram = Histogram()
        self.device: torch.device | None = None

    def _observe(self, x: Tensor) -> None:
        lo, hi = extremes(x, None)
        self.device = x.device
        if self.few is not None:
            if sum(map(len, self.few)) + x.numel() <= FEW:
                self.few.append(x.flatten().clone())  # a clone, since its owner may write into it
                return
            for earlier in self.few:
                self._count(earlier, *extremes(earlier, None))
            self.few = None
        self._count(x, lo, hi)

    def _count(self, x: Tensor, lo: Tensor, hi: Tensor) -> None:
        self.histogram.add_(x, float(lo), float(hi))

    def _range(self) -> tuple[Tensor, Tensor]:
        if self.few is not None:
            row = torch.cat(self.few).sort().values[None]  # sorted: sums must not depend on the order of arrival
            lo, hi = least_error_of_rows(row, self.bits, self.symmetric, self.candidates)
        else:
            lo, hi = least_error_of_histogram(self.histogram, self.bits, self.symmetric, self.candidates)
        return lo[0].to(self.device), hi[0].to(self.device)


class ChannelMSEEstimator(ChannelRanges):
    """Searches the rows some at a time."""

    def __init__(self, candidates: int, *, bits: int, symmetric: bool, axis: int) -> None:
        super().__init__(bits=bits, symmetric=symmetric, axis=axis)
        self.candidates = candidates

    def _ranges(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        parts = [
            least_error_of_rows(some, self.bits, self.symmetric, self.candidates)
            for some in torch.split(rows, max(1, ROWS_AT_ONCE // rows.shape[1]))
        ]
        return torch.cat([lo for lo, _ in parts]), torch.cat([hi for _, hi in parts])


def least_error_of_rows(rows: Tensor, bits: int, symmetric: bool, candidates: int) -> tuple[Tensor, Tensor]:
    """Of each row, from its values."""
    unit = torch.linalg.vector_norm(rows, ord=torch.inf, dim=1)
    unit = torch.where(unit > 0, unit, 1.0)
    x = rows / unit[:, None]  # so that neither squares nor reciprocals of steps leave float32
    lo, hi = (end.double() for end in torch.aminmax(x, dim=1))
    lo, hi = lo.clamp(max=0.0), hi.clamp(min=0.0)
    mean = x.abs().sum(1, dtype=torch.float64) / x.count_nonzero(1).clamp(min=1)
    error: ErrorOfSteps
    if symmetric:
        error = RowsError(x, torch.full_like(lo, 2 ** (bits - 1)), bits=bits)
    elif bits <= LAST_BITS_WITH_EVERY_ZERO_POINT:
        error = RowsErrorAtBestZeroPoint(x, bits=bits)
    else:  # so fine a grid clips next to nothing: the zero point is that of the full range
        error = RowsError(x, (-lo / (hi - lo).clamp(min=1e-9) * levels(bits)).round(), bits=bits)
    # Phases of rounding are as good as random, which jags the mean square of n values by 0.9 / sqrt(n).
    noise = 0.01 + 3 / math.sqrt(x.shape[1])
    lo, hi = _search(error, lo, hi, mean, bits, symmetric, candidates, noise)
    return lo * unit, hi * unit


def least_error_of_histogram(
    histogram: Histogram, bits: int, symmetric: bool, candidates: int
) -> tuple[Tensor, Tensor]:
    """Of everything seen."""
    error = BinnedError(histogram, bits=bits, symmetric=symmetric)
    lo, hi = torch.tensor([[histogram.minimum], [histogram.maximum]], dtype=torch.float64)
    lo, hi, mean = lo.clamp(max=0.0), hi.clamp(min=0.0), error.mean_magnitude
    # Where values crowd, the curve is jagged however many they are.
    return _search(error, lo, hi, mean, bits, symmetric, candidates, noise=0.1)


def _search(
    error: ErrorOfSteps, lo: Tensor, hi: Tensor, mean: Tensor, bits: int, symmetric: bool, candidates: int, noise: float
) -> tuple[Tensor, Tensor]:
    """The range of least error, given the full range and the mean magnitude of what is not zero."""
    half, most = 2 ** (bits - 1), levels(bits)
    usual = torch.maximum(-lo, hi) / (half - 1) if symmetric else (hi - lo) / most
    usual = torch.where(usual > 0, usual, 1.0)
    # A grid that ends at half the mean magnitude clips nearly everything. One that ends a little beyond the data may
    # have its levels where many values are.
    shortest = torch.minimum(torch.where(mean > 0, mean / (2 * most), 1.0), usual)
    longest = usual * (1.05 + 2 / most)
    # With few levels, where each of them comes to lie makes hills and valleys all over; with many, it roughens the bottom.
    over_all = candidates * 2 // 3 if bits <= FEW_LEVELS_BITS else candidates // 3
    counts = over_all, candidates - over_all
    step, zero_point = best_steps(error, shortest, longest, usual, counts=counts, noise=noise)
    step = torch.where(lo < hi, step, 0.0)  # nothing but zeros: any step is right, and none is needed
    if symmetric:
        return -(half - 1) * step, (half - 1) * step
    return -zero_point * step, (most - zero_point) * step


@estimators.register("mse")
class MSE(EstimatorSpec):
    """The range of least mean squared error at the given bits, searched for."""

    candidates: int = Field(default=100, ge=10, description="steps tried, about")

    def build(self, *, bits: int, symmetric: bool, axis: int | None = None) -> RangeEstimator:
        if axis is None:
            return MSEEstimator(self.candidates, bits=bits, symmetric=symmetric)
        return ChannelMSEEstimator(self.candidates, bits=bits, symmetric=symmetric, axis=axis)
