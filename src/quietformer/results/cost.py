"""What is lost, on a scale that has names, and means with their deviations; needs no torch."""

from __future__ import annotations

import math
import statistics

SCALES = {"higher": [0.005, 0.02, 0.1], "lower": [math.log(1.01), math.log(1.05), math.log(1.5)]}
"""What a loss is called: up to the first nothing, to the second little, past the third broken. Of perplexities the
logarithm of the ratio, of anything else the share that is gone."""


def cost(before: float | None, after: float | None, better: str) -> float | None:
    """How much is lost, on the scale of `SCALES`; infinite for a model that gives no number any more."""
    if before is None or before <= 0:
        return None
    if after is None:
        return math.inf
    return (before - after) / before if better == "higher" else math.log(after / before)


def spread(values: list[float | None]) -> dict[str, float | None]:
    """Mean and standard deviation; None if one of the values is no number."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if len(finite) < len(values):
        return {"mean": None, "std": None}
    return {"mean": statistics.fmean(finite), "std": statistics.stdev(finite) if len(finite) > 1 else 0.0}
