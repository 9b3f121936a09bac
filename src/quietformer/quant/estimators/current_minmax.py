"""Current min-max: the range of the last batch only."""

from __future__ import annotations

from torch import Tensor

from quietformer.config.quantization import EstimatorSpec, estimators
from quietformer.quant.estimators.base import RangeEstimator, extremes, wider


class CurrentMinMaxEstimator(RangeEstimator):
    """Keeps the range of the current batch only."""

    last: tuple[Tensor, Tensor] | None = None

    def _observe(self, x: Tensor) -> None:
        found = extremes(x, self.axis)
        self.last = wider(self.last, found) if self.continues and self.last is not None else found

    def _range(self) -> tuple[Tensor, Tensor]:
        assert self.last is not None
        return self.last


@estimators.register("current_minmax")
class CurrentMinMax(EstimatorSpec):
    """The smallest and largest value of the last batch."""

    def build(self, *, bits: int, symmetric: bool, axis: int | None = None) -> RangeEstimator:
        return CurrentMinMaxEstimator(bits=bits, symmetric=symmetric, axis=axis)
