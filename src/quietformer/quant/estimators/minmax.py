"""Min-max: the range of all values seen."""

from __future__ import annotations

from torch import Tensor

from quietformer.config.quantization import EstimatorSpec, estimators
from quietformer.quant.estimators.base import RangeEstimator, WidestRange, extremes


class MinMaxEstimator(WidestRange):
    """The smallest and largest of all values."""

    def _observe(self, x: Tensor) -> None:
        self._widen_(*extremes(x, self.axis))


@estimators.register("minmax")
class MinMax(EstimatorSpec):
    """The smallest and largest value seen."""

    def build(self, *, bits: int, symmetric: bool, axis: int | None = None) -> RangeEstimator:
        return MinMaxEstimator(bits=bits, symmetric=symmetric, axis=axis)
