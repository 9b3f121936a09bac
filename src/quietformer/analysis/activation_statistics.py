"""Metrics of activation tensors: exact, in one pass, mergeable, and the same whatever the batch size.

The tensor of one sequence (its real tokens by its features) is the unit, as in the paper: kurtosis and infinity norm
are taken for each sequence and averaged; an outlier is more than six standard deviations from its sequence's mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from quietformer.quant.histogram import COARSE_BINS, histogram, histogram_quantile
from quietformer.results.inspect import TensorMetrics

OUTLIER_SIGMAS = 6.0


@dataclass
class SequenceMetrics:
    """Metrics of the values of one sequence."""

    count: int
    mean: float
    variance: float
    kurtosis: float | None  # None where all values are equal
    minimum: float
    maximum: float
    outlier: Tensor  # boolean, in the shape of the values


def sequence_metrics(x: Tensor) -> SequenceMetrics:
    """mean((x - mean)^4) / std^4 and the rest, in float64."""
    flat = x.flatten()
    low, high = torch.aminmax(flat)
    count = flat.numel()
    mean = flat.sum(dtype=torch.float64) / count
    square = flat.double().sub_(mean).square_()
    variance = float(square.sum() / count)
    fourth = float(torch.dot(square, square) / count)
    minimum, maximum = float(low), float(high)
    varied = variance > (1e-12 * max(abs(minimum), abs(maximum))) ** 2
    outlier = square > (OUTLIER_SIGMAS**2 * variance if varied else math.inf)
    return SequenceMetrics(
        count=count,
        mean=float(mean),
        variance=variance,
        kurtosis=fourth / variance**2 if varied else None,
        minimum=minimum,
        maximum=maximum,
        outlier=outlier.view(x.shape),
    )


@dataclass
class RunningMetrics:
    """Running metrics of one site of one layer; memory does not grow with the data."""

    sequences: int = 0
    values: int = 0
    total: float = 0.0
    total_square: float = 0.0
    infinity_sum: float = 0.0
    kurtosis_sum: float = 0.0
    kurtosis_count: int = 0
    outliers: int = 0
    minimum: float = math.inf
    maximum: float = -math.inf
    bins: Tensor = field(default_factory=lambda: torch.zeros(COARSE_BINS, dtype=torch.int64))
    outlier_bins: Tensor = field(default_factory=lambda: torch.zeros(COARSE_BINS, dtype=torch.int64))

    def add(self, x: Tensor) -> SequenceMetrics:
        """Take the values of one sequence in; their metrics are returned for whoever wants to look closer."""
        one = sequence_metrics(x)
        self.sequences += 1
        self.values += one.count
        self.total += one.mean * one.count
        self.total_square += (one.variance + one.mean**2) * one.count
        self.infinity_sum += max(abs(one.minimum), abs(one.maximum))
        if one.kurtosis is not None:
            self.kurtosis_sum += one.kurtosis
            self.kurtosis_count += 1
        self.outliers += int(one.outlier.sum())
        self.minimum = min(self.minimum, one.minimum)
        self.maximum = max(self.maximum, one.maximum)
        self.bins += histogram(x)
        if bool(one.outlier.any()):
            self.outlier_bins += histogram(x[one.outlier])
        return one

    @property
    def std(self) -> float:
        mean = self.total / self.values
        return math.sqrt(max(self.total_square / self.values - mean * mean, 0.0))

    def percentile(self, q: float) -> float:
        return min(max(histogram_quantile(self.bins, q / 100), self.minimum), self.maximum)

    def int8_bits_left(self) -> float:
        """Bits that per-tensor asymmetric INT8 leaves to the middle 99.8 % of the values that are no outliers.

        Without the outliers: one dimension that is always large is 1/d of the values, well inside the middle.
        """
        step = (max(self.maximum, 0.0) - min(self.minimum, 0.0)) / 255
        ordinary = self.bins - self.outlier_bins
        rest = histogram_quantile(ordinary, 0.999) - histogram_quantile(ordinary, 0.001)
        return 8.0 if step == 0 else max(0.0, min(8.0, math.log2(max(rest / step, 1.0))))

    def tensor_metrics(self, site: str, layer: int) -> TensorMetrics:
        return TensorMetrics(
            site=site,
            layer=layer,
            infinity_norm=self.infinity_sum / self.sequences,
            kurtosis=self.kurtosis_sum / self.kurtosis_count if self.kurtosis_count else None,
            std=self.std,
            min=self.minimum,
            max=self.maximum,
            percentiles={str(q): self.percentile(q) for q in (0.01, 0.1, 1, 50, 99, 99.9, 99.99)},
            outliers=self.outliers,
            outlier_share=self.outliers / self.values,
            int8_bits_left=self.int8_bits_left(),
        )
