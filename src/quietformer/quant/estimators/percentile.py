"""Percentile: the range without the few values at its ends."""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor

from quietformer.config.quantization import EstimatorSpec, estimators
from quietformer.quant.estimators.base import ChannelRanges, RangeEstimator, extremes
from quietformer.quant.histogram import Histogram


class PercentileEstimator(RangeEstimator):
    """The percentiles of all values seen, from a histogram whose bins are 0.39 % of the value wide."""

    def __init__(self, q: float, *, bits: int, symmetric: bool) -> None:
        super().__init__(bits=bits, symmetric=symmetric)
        self.q = q
        self.histogram = Histogram()
        self.device: torch.device | None = None

    def _observe(self, x: Tensor) -> None:
        lo, hi = extremes(x, None)
        self.histogram.add_(x, float(lo), float(hi))
        self.device = x.device

    def _range(self) -> tuple[Tensor, Tensor]:
        lo, hi = self.histogram.quantile(1 - self.q / 100), self.histogram.quantile(self.q / 100)
        return torch.tensor(lo, device=self.device), torch.tensor(hi, device=self.device)


class ChannelPercentileEstimator(ChannelRanges):
    """Exact percentiles per channel, interpolated between ranks."""

    def __init__(self, q: float, *, bits: int, symmetric: bool, axis: int) -> None:
        super().__init__(bits=bits, symmetric=symmetric, axis=axis)
        self.q = q

    def _ranges(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return -_upper_percentile(-rows, self.q), _upper_percentile(rows, self.q)


def _upper_percentile(rows: Tensor, q: float) -> Tensor:
    """The percentile of each row, interpolated between ranks; only the values above it are sorted."""
    rank = q / 100 * (rows.shape[1] - 1)
    largest = rows.topk(rows.shape[1] - math.floor(rank), dim=1).values
    above = largest[:, -2] if largest.shape[1] > 1 else largest[:, -1]
    return torch.lerp(largest[:, -1], above, rank - math.floor(rank))


@estimators.register("percentile")
class Percentile(EstimatorSpec):
    """The percentiles 100 - q and q of all values seen, accurate to 0.4 % of the value."""

    q: float = Field(default=99.999, gt=50, le=100, description="percentile of the upper end; 100 - q is the lower end")

    def build(self, *, bits: int, symmetric: bool, axis: int | None = None) -> RangeEstimator:
        if axis is None:
            return PercentileEstimator(self.q, bits=bits, symmetric=symmetric)
        return ChannelPercentileEstimator(self.q, bits=bits, symmetric=symmetric, axis=axis)
