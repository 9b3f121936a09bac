"""Search for the step of least error along a curve that is smooth as a whole and jagged close up."""

# R rows searched side by side, M candidate steps of each

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

ErrorOfSteps = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Takes steps_RM to the squared error at the best zero point, and that zero point."""

REFINING_CANDIDATES = 16  # beyond the others, around the best


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

    The first of the two counts of candidates cover the whole interval, the second all of it that may hold the least
    error if the curve is jagged by a share `noise`. A few more refine the best.
    """
    search = _Best(error, usual_R, shortest_R, longest_R)
    search.look_(counts[0], slack=noise)
    search.look_(counts[1], slack=0.0)
    search.look_(REFINING_CANDIDATES, slack=0.0)
    return search.step_R, search.zero_point_R


class _Best:
    """The best step of each row so far, and the window of steps worth another look."""

    def __init__(self, error: ErrorOfSteps, first_R: Tensor, shortest_R: Tensor, longest_R: Tensor) -> None:
        self.error = error
        self.step_R = first_R
        self.error_R = torch.full_like(first_R, torch.inf)
        self.zero_point_R = torch.zeros_like(first_R)
        self.bounds = self.window = shortest_R, longest_R

    def look_(self, count: int, slack: float) -> None:
        """Try steps at equal ratios; those within `slack` of the best, and one ratio more, are the next window."""
        low_R, high_R = self.window
        exponents_M = torch.linspace(0, 1, count, dtype=torch.float64, device=low_R.device)
        steps_RM = low_R[:, None] * (high_R / low_R)[:, None] ** exponents_M
        # The best comes along in first place, where nothing that is only equal replaces it.
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
