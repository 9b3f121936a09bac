"""What a grid takes from one tensor: its noise, the values that become zero, and how much the ranges of tokens differ."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from quietformer.quant.quantizer import Quantizer
from quietformer.results.annihilation import RoundedToZero

INSIDE_ATTENTION = (":scores", ":probabilities")
"""Tensors whose last dimension is the keys of a query, not features."""


class TensorLoss:
    """Running sums over what passes one quantizer; it observes as a range estimator does."""

    def __init__(self, quantizer: Quantizer) -> None:
        self.quantizer = quantizer
        self.lo, self.hi = 0.0, 0.0
        self.signal = self.noise = 0.0
        self.nonzero = self.zeroed = 0
        self.tokens, self.lost_by_token = 0, 0.0
        self.energy: Tensor | float = 0.0
        self.lost_energy: Tensor | float = 0.0
        self.ranges: list[Tensor] = []

    def observe(self, x: Tensor) -> None:
        """Take one tensor in, as it is before it is rounded."""
        if x.numel():  # an expert may get no tokens
            x = x.detach().float()
            self.add(x, self.quantizer.rounded(x))

    def add(self, x: Tensor, rounded: Tensor) -> None:
        """Count what rounding it so takes from x."""
        square = x.square()
        self.signal += float(square.sum(dtype=torch.float64))
        self.noise += float((rounded - x).square_().sum(dtype=torch.float64))
        self.lo, self.hi = min(self.lo, float(x.min())), max(self.hi, float(x.max()))
        if not self.quantizer.site.endswith(":weight") and x.dim() > 1:
            self._add_rows(x.flatten(0, -2), square.flatten(0, -2), (rounded == 0).flatten(0, -2))

    def _add_rows(self, rows: Tensor, square: Tensor, becomes_zero: Tensor) -> None:
        self.nonzero += int((rows != 0).sum())
        self.zeroed += int((becomes_zero & (rows != 0)).sum())
        lost = square * becomes_zero
        energy = square.sum(1, dtype=torch.float64)
        self.tokens += int((energy > 0).sum())
        self.lost_by_token += float((lost.sum(1, dtype=torch.float64) / energy)[energy > 0].sum())
        if not self.quantizer.site.endswith(INSIDE_ATTENTION):
            self.energy = self.energy + square.sum(0, dtype=torch.float64)
            self.lost_energy = self.lost_energy + lost.sum(0, dtype=torch.float64)
        self.ranges.append(rows.abs().amax(1))

    @property
    def decibels(self) -> float | None:
        """The signal-to-noise ratio; None where there is no error or no signal."""
        if not self.noise or not self.signal:
            return None
        return 10 * math.log10(self.signal / self.noise)

    def rounded_to_zero(self) -> RoundedToZero:
        """The share of nonzero values that become zero, and the share of energy (sum of squares) that goes with them.

        That is averaged over tokens, and over channels; not over channels inside attention, where the last dimension is none.
        """
        energy, lost = torch.as_tensor(self.energy), torch.as_tensor(self.lost_energy)
        channels = energy.dim() > 0 and bool((energy > 0).any())
        return RoundedToZero(
            zeroed=self.zeroed / self.nonzero if self.nonzero else None,
            lost_by_token=self.lost_by_token / self.tokens if self.tokens else None,
            lost_by_channel=float((lost / energy)[energy > 0].mean()) if channels else None,
        )

    @property
    def token_spread(self) -> float | None:
        """The largest range of a token as a multiple of the median one."""
        ranges = torch.cat(self.ranges) if self.ranges else torch.zeros(1)
        median = float(ranges.median())
        return float(ranges.max()) / median if median > 0 else None
