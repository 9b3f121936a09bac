"""Limits of quality: `cosine=0.998`, `wer=0.05`."""

from __future__ import annotations

import math

from quietformer.config.spec_base import nearest
from quietformer.config.tasks import METRICS, MeasuredTask
from quietformer.errors import QuietformerError, SpecError

EVERY_METRIC = tuple(dict.fromkeys(metric for metrics in METRICS.values() for metric in metrics))


def read_limits(texts: tuple[str, ...]) -> dict[str, float]:
    """Values by metric, from `METRIC=VALUE`."""
    limits: dict[str, float] = {}
    for text in texts:
        name, mark, value = text.partition("=")
        if name not in EVERY_METRIC:
            raise SpecError(f"--min-quality: unknown metric {name!r}{nearest(name, EVERY_METRIC)}")
        try:
            limits[name] = float(value)
        except ValueError:
            limits[name] = math.nan
        if not mark or not math.isfinite(limits[name]):
            raise SpecError(f"--min-quality takes METRIC=VALUE with a number, e.g. cosine=0.998, got {text!r}")
    return limits


def check_limits_fit(limits: dict[str, float], task: MeasuredTask, model: str) -> None:
    """Refuse a metric that no model of this task has, before the work."""
    for name in limits:
        if name not in METRICS[task]:
            raise QuietformerError(
                f"--min-quality {name}: {model} is not measured by it; choose from {', '.join(METRICS[task])}"
            )
