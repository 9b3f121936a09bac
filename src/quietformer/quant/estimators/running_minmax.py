"""Running min-max: an average range, which one unusual batch hardly changes."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from quietformer.config.quantization import EstimatorSpec, estimators
from quietformer.quant.estimators.base import RangeEstimator, extremes, wider


class RunningMinMaxEstimator(RangeEstimator):
    """momentum * average + (1 - momentum) * this batch's extreme; the first batch starts the average."""

    earlier: tuple[Tensor, Tensor] | None = None  # the average of the batches before this one
    batch: tuple[Tensor, Tensor] | None = None

    def __init__(self, momentum: float, *, bits: int, symmetric: bool, axis: int | None = None) -> None:
        super().__init__(bits=bits, symmetric=symmetric, axis=axis)
        self.momentum = momentum

    def _observe(self, x: Tensor) -> None:
        found = extremes(x, self.axis)
        if self.continues and self.batch is not None:
            self.batch = wider(self.batch, found)
        else:
            self.earlier = None if self.batch is None else self._range()
            self.batch = found

    def _range(self) -> tuple[Tensor, Tensor]:
        assert self.batch is not None
        if self.earlier is None:
            return self.batch
        lo, hi = (old.lerp(new, 1 - self.momentum) for old, new in zip(self.earlier, self.batch, strict=True))
        return lo, hi


@estimators.register("running_minmax")
class RunningMinMax(EstimatorSpec):
    """The exponential average of each batch's smallest and largest value."""

    momentum: float = Field(default=0.9, ge=0, lt=1, description="weight of the previous average at each batch")

    def build(self, *, bits: int, symmetric: bool, axis: int | None = None) -> RangeEstimator:
        return RunningMinMaxEstimator(self.momentum, bits=bits, symmetric=symmetric, axis=axis)
