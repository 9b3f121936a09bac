"""Search for the step of least error on a curve that is smooth at large scale and jagged at small scale."""

# R rows searched in parallel, M candidate steps per row

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

ErrorOfSteps = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Maps steps_RM to the squared error at the best zero point, and to that zero point."""

REFINING_CANDIDATES = 16  # tried in addition, around the best step


def best_steps(
    error: ErrorOfSteps,
    shortest_R: Tensor,
    longest_R: Tensor,
    usual_R: Tensor,
    *,
    counts: tuple[int, int],
    noise: float,
) -> tuple[Tensor, Tensor]:
    """The step and zero point of least error for each row; never worse than the step `usual_R`.

    The first of the two counts of candidates covers the whole interval. The second covers the part that may hold the least
    error if the curve is jagged by the relative amount `noise`. A few more candidates refine the best step.
    """
    search = _Best(error, usual_R, shortest_R, longest_R)
    search.look_(counts[0], slack=noise)
    search.look_(counts[1], slack=0.0)
    search.look_(REFINING_CANDIDATES, slack=0.0)
    return search.step_R, search.zero_point_R


class _Best:
    """The best step of each row so far, and the window of steps to search next."""

    def __init__(self, error: ErrorOfSteps, first_R: Tensor, shortest_R: Tensor, longest_R: Tensor) -> None:
        self.error = error
        self.step_R = first_R
        self.error_R = torch.full_like(first_R, torch.inf)
        self.zero_point_R = torch.zeros_like(first_R)
        self.bounds = self.window = shortest_R, longest_R

    def look_(self, count: int, slack: float) -> None:
        """Try steps at equal ratios; the next window covers all within `slack` of the best, plus one ratio on each side."""
        low_R, high_R = self.window
        exponents_M = torch.linspace(0, 1, count, dtype=torch.float64, device=low_R.device)
        steps_RM = low_R[:, None] * (high_R / low_R)[:, None] ** exponents_M
        # The best so far comes first, so that a step of equal error does not replace it.
        steps_RM = torch.cat([self.step_R[:, None], steps_RM], dim=1)
        errors_RM, zero_points_RM = self.error(steps_RM)
        self.error_R, index_R = errors_RM.min(dim=1)
        self.step_R, self.zero_point_R = (x.gather(1, index_R[:, None])[:, 0] for x in (steps_RM, zero_points_RM))
        near_RM = errors_RM <= self.error_R[:, None] * (1 + slack)
        worth_RM = steps_RM.where(near_RM, self.step_R[:, None])
        ratio_R = (high_R / low_R) ** (1 / (count - 1))
        self.window = (
            torch.maximum(worth_RM.amin(1) / ratio_R, self.bounds[0]),
            torch.minimum(worth_RM.amax(1) * ratio_R, self.bounds[1]),
        )
