"""Squared error of quantization grids, computed from the values: for rows too short for a histogram."""

# R rows, M candidate steps, N values per row, K levels on a side

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from quietformer.quant.affine import levels

BLOCK = 1 << 17  # number of values processed at once, so that they stay in the cache


class RowsError:
    """The error at each step of a grid whose zero point is given for each row."""

    def __init__(self, x_RN: Tensor, zero_point_R: Tensor, *, bits: int) -> None:
        self.x_RN = x_RN
        self.zero_point_R = zero_point_R
        self.low_R11 = -zero_point_R.float()[:, None, None]
        self.high_R11 = self.low_R11 + levels(bits)

    def __call__(self, steps_RM: Tensor) -> tuple[Tensor, Tensor]:
        inverse_RM1 = (1 / steps_RM).float()[..., None]
        error_RM = torch.empty_like(steps_RM)
        for rows, columns in blocks(steps_RM, self.x_RN.shape[1]):
            y = self.x_RN[rows, None, :] * inverse_RM1[rows, columns]
            nearest = y.round()
            # Two passes, since clamp does not broadcast at speed.
            torch.maximum(nearest, self.low_R11[rows], out=nearest)
            torch.minimum(nearest, self.high_R11[rows], out=nearest)
            error_RM[rows, columns] = torch.linalg.vector_norm(y.sub_(nearest), dim=-1).double()
        return error_RM.mul_(steps_RM).square_(), self.zero_point_R[:, None].expand_as(steps_RM)


class RowsErrorAtBestZeroPoint:
    """The error at each step of the grid with the best zero point, found by counting values by their level.

    On an endless grid a value errs by e = x/s - k at its level k. Ending the grid at level K < k adds
    (k - K)^2 + 2e(k - K), whose sums over values are repeated running sums over levels, of the counts and of e.
    """

    def __init__(self, x_RN: Tensor, *, bits: int) -> None:
        self.x_RN = x_RN
        self.most = levels(bits)

    def __call__(self, steps_RM: Tensor) -> tuple[Tensor, Tensor]:
        most, inverse_RM1 = self.most, (1 / steps_RM).float()[..., None]
        error_RM, zero_point_RM = torch.empty_like(steps_RM), torch.empty_like(steps_RM, dtype=torch.int64)
        for rows, columns in blocks(steps_RM, max(self.x_RN.shape[1], 2 * most)):
            y = self.x_RN[rows, None, :] * inverse_RM1[rows, columns]
            level = y.round().clamp_(-most, most)
            error = y.sub_(level)
            extra = self._cost_of_ending(level, error)
            least, place = extra.min(dim=-1)
            zero_point_RM[rows, columns] = most - place
            error_RM[rows, columns] = (error.square_().sum(-1) + least).double()
        return error_RM.mul_(steps_RM.square()), zero_point_RM

    def _cost_of_ending(self, level: Tensor, error: Tensor) -> Tensor:
        """The error added by the ends of the grid, for the zero points from the largest down."""
        most, (rows, columns, _) = self.most, level.shape
        cells = 2 * most + 1
        first = torch.arange(0, rows * columns * cells, cells, dtype=torch.int32, device=level.device) + most
        code = (level.int() + first.view(rows, columns, 1)).flatten()
        count = torch.bincount(code, minlength=rows * columns * cells).view(rows, columns, cells).float()
        errors = torch.bincount(code, error.flatten(), minlength=rows * columns * cells).view(rows, columns, cells)
        # From the outermost level to zero on both sides; the side above zero is mirrored to share the code.
        count = torch.stack([count[..., : most + 1], count.flip(-1)[..., : most + 1]])
        errors = torch.stack([-errors[..., : most + 1], errors.flip(-1)[..., : most + 1]]).float()
        at_or_beyond, errors_beyond = count.cumsum(-1), errors.cumsum(-1)
        levels_beyond = at_or_beyond.cumsum(-1).sub_(at_or_beyond)
        cost = (levels_beyond + errors_beyond).cumsum(-1).mul_(2) - levels_beyond - 2 * errors_beyond
        return cost[0] + cost[1].flip(-1)


def blocks(table: Tensor, size: int) -> Iterator[tuple[slice, slice]]:
    """Parts of the table that fit the cache, with `size` values per entry and at least one entry each."""
    rows, columns = table.shape
    wide = min(columns, max(1, BLOCK // size))
    high = max(1, BLOCK // (size * wide))
    for top in range(0, rows, high):
        for left in range(0, columns, wide):
            yield slice(top, top + high), slice(left, left + wide)
