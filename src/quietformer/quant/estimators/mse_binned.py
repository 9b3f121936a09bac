"""Squared error of any quantization grid, computed from a histogram alone.

Rounding x > 0 to the nearest of 0, s, 2s, ..., Ks errs by x^2 at level 0, and each boundary b between two levels that
lies below x takes 2s(x - b) off. So the error of all x is sum(x^2) - 2s * (the sum over boundaries of T(b)), where
T(t) = sum of (x - t) over x > t is one function of the data. Its running sums over the boundaries give the error for
every K at once, and with the negative values treated alike, for every zero point.
"""

# S sides (negative, positive), M candidate steps, K the levels on a side

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from quietformer.quant.affine import SMALLEST_SCALE, levels
from quietformer.quant.histogram import FINE_BITS, Histogram

CELL_BITS = 10
"""Up to this many bits each cell of the grid is summed; with more bits the bins are wider than the cells."""

ZERO_POINTS = 256  # tried above CELL_BITS


class BinnedError:
    """The error at each step of the grid with the best zero point, with values spread evenly over their bins."""

    def __init__(self, histogram: Histogram, *, bits: int, symmetric: bool) -> None:
        self.most = levels(bits)
        self.by_cells = bits <= CELL_BITS
        self.tails = Tails(histogram, cautious=not self.by_cells)
        if symmetric:
            self.zero_points = torch.tensor([2 ** (bits - 1)])
        elif self.by_cells:
            self.zero_points = torch.arange(self.most + 1)
        else:
            lo, hi = min(histogram.minimum, 0.0), max(histogram.maximum, 0.0)
            of_full_range = torch.tensor([-lo / max(hi - lo, SMALLEST_SCALE)], dtype=torch.float64)
            shares = torch.cat([torch.linspace(0, 1, ZERO_POINTS + 1, dtype=torch.float64), of_full_range])
            self.zero_points = (shares * self.most).round().long()
        self.ends_SK = torch.stack([self.zero_points, self.most - self.zero_points])
        self.levels_K = torch.arange(int(self.ends_SK.max()), dtype=torch.float64)

    def __call__(self, steps_RM: Tensor) -> tuple[Tensor, Tensor]:
        (steps_M,) = steps_RM
        errors_MK = self._of_cells(steps_M) if self.by_cells else self._of_narrow_cells(steps_M)
        least_M, index_M = errors_MK.min(dim=1)
        return least_M[None], self.zero_points.index_select(0, index_M)[None]

    @property
    def mean_magnitude(self) -> Tensor:
        """The mean |x| of the values that are not zero."""
        return self.tails.total_distance.sum(0, keepdim=True) / self.tails.counts[:, -1].sum().clamp(min=1)

    def _of_cells(self, steps_M: Tensor) -> Tensor:
        boundaries_MK = (self.levels_K + 0.5) * steps_M[:, None]
        saved_SMK = pad(self.tails.distance(boundaries_MK).cumsum(dim=2), (1, 0)).mul_(2 * steps_M[:, None])
        below_MK, above_MK = (saved_SMK[side].index_select(1, ends_K) for side, ends_K in enumerate(self.ends_SK))
        return self.tails.total_square.sum() - (below_MK + above_MK)

    def _of_narrow_cells(self, steps_M: Tensor) -> Tensor:
        """s^2 / 12 per value; x^2 in the cell of zero, and the squared distance to the last level beyond its cell."""
        half_M1, errors_MK = steps_M[:, None] / 2, torch.zeros(1, dtype=torch.float64)
        at_zero_SM1 = self.tails.total_square - self.tails.square(half_M1, half_M1)
        elsewhere_SM1 = self.tails.count(half_M1)
        for side, ends_K in enumerate(self.ends_SK):
            last_boundary_MK = steps_M[:, None] * (ends_K + 0.5)
            inside_MK = (elsewhere_SM1[side] - self.tails.count(last_boundary_MK)[side]).clamp(min=0.0)
            clipped_MK = self.tails.square(last_boundary_MK, half_M1)[side]
            errors_MK = errors_MK + at_zero_SM1[side] + inside_MK * steps_M[:, None] ** 2 / 12 + clipped_MK
        return errors_MK


class Tails:
    """The tails beyond thresholds on both sides of zero: the number of values, and the sums of their excess and its square.

    Values are spread evenly over their bins, or with `cautious` placed at the outer edge of their bin: where bins are much
    wider than the steps, a range that ends inside a bin must not seem to clip little.
    """

    def __init__(self, histogram: Histogram, *, cautious: bool) -> None:
        self.top = histogram.top
        self.last = histogram.span
        largest_S1 = torch.tensor([[-histogram.minimum], [histogram.maximum]], dtype=torch.float64).clamp(min=0.0)
        # From the outermost bin inwards, so that sums over a tail are running sums. The last bin holds the values below
        # the histogram's window. No value lies beyond the largest one.
        self.edge = torch.minimum(histogram.edges.flip(0), largest_S1)
        width = self.edge - pad(self.edge[:, 1:], (0, 1))
        count = pad(histogram.counts.flip(1), (0, 1)).double()
        self.density = torch.zeros_like(count) if cautious else torch.where(width > 0, count / width, 0.0)
        # At the upper edge of each bin:
        self.counts = count.cumsum(1) if cautious else _sum_before(count)
        mean_count = self.counts if cautious else self.counts + count / 2
        self.distances = _sum_before(width * mean_count)
        squares = width * (2 * self.distances + width * (self.counts if cautious else self.counts + count / 3))
        self.squares = _sum_before(squares)
        self.total_square = squares.sum(dim=1).view(2, 1, 1)
        self.total_distance = self.distances[:, -1] + self.counts[:, -1] * self.edge[:, -1]

    def count(self, thresholds: Tensor) -> Tensor:
        """The number of values beyond each threshold, on either side."""
        place, depth = self._place(thresholds)
        return _read(self.counts, place) + _read(self.density, place) * depth

    def distance(self, thresholds: Tensor) -> Tensor:
        """The sum of their distances to the threshold."""
        place, depth = self._place(thresholds)
        inner = _read(self.density, place).mul_(depth).div_(2).add_(_read(self.counts, place)).mul_(depth)
        return inner.add_(_read(self.distances, place))

    def square(self, thresholds: Tensor, before: Tensor) -> Tensor:
        """The sum of their squared distances to a point that lies `before` in front of the threshold."""
        place, depth = self._place(thresholds)
        inner = depth * (_read(self.counts, place) + _read(self.density, place) * depth / 3)
        square = _read(self.squares, place) + depth * (inner + 2 * _read(self.distances, place))
        return square + before * (2 * self.distance(thresholds) + before * self.count(thresholds))

    def _place(self, thresholds: Tensor) -> tuple[Tensor, Tensor]:
        """The table index of each threshold, and its distance to the upper edge of its bin.

        The leading bits of the threshold are the bin, so no search is needed.
        """
        code = thresholds.float().view(torch.int32) >> (23 - FINE_BITS)
        inwards = code.neg_().add_(self.top - 1).clamp_(0, self.last)
        place = torch.stack([inwards, inwards + (self.last + 1)])
        return place, _read(self.edge, place).sub_(thresholds).clamp_(min=0.0)


def _read(table: Tensor, place: Tensor) -> Tensor:
    """table[place] over both sides; index_select from one dimension is many times faster than indexing."""
    return table.view(-1).index_select(0, place.view(-1)).view(place.shape)


def _sum_before(x: Tensor) -> Tensor:
    """At each place, the sum of all earlier ones."""
    return x.cumsum(1) - x
