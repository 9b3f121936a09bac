"""The base classes of range estimators."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from quietformer.errors import QuietformerError

LARGEST = torch.finfo(torch.float32).max


class RangeEstimator:
    """Observes tensors and returns the range to quantize; its memory does not grow with the data."""

    def __init__(self, *, bits: int, symmetric: bool, axis: int | None = None) -> None:
        self.bits = bits
        self.symmetric = symmetric
        self.axis = axis
        self.seen = 0  # number of tensors observed
        self._seen_before_batch: int | None = None

    def begin_batch(self) -> None:
        """Start a batch; it lasts until the next call, since a shared layer observes several tensors per batch."""
        self._seen_before_batch = self.seen

    @property
    def continues(self) -> bool:
        """Whether the current tensor belongs to the same batch as the previous one."""
        return self._seen_before_batch is not None and self.seen > self._seen_before_batch

    def observe(self, x: Tensor) -> None:
        """Observe one tensor."""
        x = x.detach()
        if x.numel() == 0:
            return
        self._observe(x.float())
        self.seen += 1  # after the call, so that a rejected tensor does not count

    def range(self) -> tuple[Tensor, Tensor]:
        """The lowest and highest value to represent, float32, 0-d or one per channel; zero always lies between them."""
        if not self.seen:
            raise QuietformerError("no data was observed, so there is no range")
        lo, hi = self._range()
        return lo.float().clamp(-LARGEST, 0.0), hi.float().clamp(0.0, LARGEST)

    def _observe(self, x: Tensor) -> None:
        raise NotImplementedError

    def _range(self) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


class WidestRange(RangeEstimator):
    """Keeps the union of the ranges it is given."""

    widest: tuple[Tensor, Tensor] | None = None

    def _widen_(self, lo: Tensor, hi: Tensor) -> None:
        self.widest = (lo, hi) if self.widest is None else wider(self.widest, (lo, hi))

    def _range(self) -> tuple[Tensor, Tensor]:
        assert self.widest is not None
        return self.widest


class ChannelRanges(WidestRange):
    """One range per channel, found for each tensor as it comes; the union of the ranges of several tensors."""

    def _observe(self, x: Tensor) -> None:
        assert self.axis is not None
        extremes(x, self.axis)  # raises if a value is not finite
        self._widen_(*self._ranges(channels(x, self.axis)))

    def _ranges(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


def wider(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The range that covers both."""
    return torch.minimum(a[0], b[0]), torch.maximum(a[1], b[1])


def channels(x: Tensor, axis: int) -> Tensor:
    """The tensor as one row per channel."""
    return x.movedim(axis, 0).reshape(x.shape[axis], -1)


def extremes(x: Tensor, axis: int | None) -> tuple[Tensor, Tensor]:
    """The smallest and largest value, 0-d or one per channel; raises if a value is not finite."""
    if axis is None:
        smallest, largest = torch.aminmax(x)
        finite = math.isfinite(smallest) and math.isfinite(largest)
    else:
        smallest, largest = torch.aminmax(channels(x, axis), dim=1)
        finite = bool(torch.isfinite(torch.stack([smallest, largest])).all())
    if not finite:
        raise QuietformerError("values hold NaN or infinity, so there is no range that covers them")
    return smallest, largest
