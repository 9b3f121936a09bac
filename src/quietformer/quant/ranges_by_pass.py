"""A range for each call of a module that layers share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from quietformer.quant.estimators.base import RangeEstimator
from quietformer.quant.quantizer import Quantizer


class RangesByPass(RangeEstimator):
    """One estimator a call; each sees what the quantizer gets in its call."""

    def __init__(self, quantizer: Quantizer, build: Callable[[], RangeEstimator]) -> None:
        super().__init__(bits=quantizer.grid.bits, symmetric=quantizer.grid.symmetric)
        self.quantizer = quantizer
        self.parts = [build() for _ in range(quantizer.grid.passes or 1)]

    def begin_batch(self) -> None:
        for part in self.parts:
            part.begin_batch()

    def observe(self, x: Tensor) -> None:
        self.parts[self.quantizer.place].observe(x)
        self.seen = min(part.seen for part in self.parts)

    def _range(self) -> tuple[Tensor, Tensor]:
        lows, highs = zip(*(part.range() for part in self.parts), strict=True)
        return torch.stack(lows), torch.stack(highs)
