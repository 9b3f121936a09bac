"""The learning rate as a pure function of the step."""

from __future__ import annotations

import math

from quietformer.config.optimization import ScheduleRecipe


def warmup_steps(schedule: ScheduleRecipe, steps_per_epoch: float) -> int:
    """Optimizer steps of the warm-up, given in steps or in epochs."""
    return schedule.warmup_steps or round(schedule.warmup_epochs * steps_per_epoch)


def rate_factor(step: int, schedule: ScheduleRecipe, *, peak: float, warmup: int, total: int) -> float:
    """The share of the peak rate that step `step`, counted from 0, is made with."""
    if step < warmup:
        start = schedule.warmup_from / peak
        return start + (1 - start) * step / warmup
    if schedule.shape == "constant":
        return 1.0
    fall_from = max(warmup, round(schedule.hold * total))
    if step < fall_from:
        return 1.0
    progress = min(1.0, (step - fall_from) / max(1, total - fall_from))
    left = 1 - progress if schedule.shape == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
    floor = schedule.final / peak
    return floor + (1 - floor) * left
