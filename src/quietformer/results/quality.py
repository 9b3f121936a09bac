"""How good a model is: metrics by name, their spread over runs, and what quantization cost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import Annotated, Generic, Literal, TypeVar

from pydantic import AfterValidator, Field, field_validator

from quietformer.config.tasks import MeasuredTask
from quietformer.results.base import Number, Record, finite_number

Better = Literal["higher", "lower"]
LOWER_IS_BETTER = ("perplexity", "loss", "wer")
SCALES: dict[Better, list[float]] = {
    "higher": [0.005, 0.02, 0.1],
    "lower": [math.log(1.01), math.log(1.05), math.log(1.5)],
}
"""Limits of a loss in quality: up to the first it is nothing, to the second little, past the third the model is broken.
For perplexities the logarithm of the ratio, for everything else the share that is gone."""

T = TypeVar("T")
U = TypeVar("U")


class Spread(Record):
    """Mean and standard deviation; None if one of the values was no number."""

    mean: Number
    std: Number

    @classmethod
    def of(cls, values: list[float | None]) -> Spread:
        finite = [value for value in values if value is not None and math.isfinite(value)]
        if len(finite) < len(values):
            return cls(mean=None, std=None)
        return cls(mean=statistics.fmean(finite), std=statistics.stdev(finite) if len(finite) > 1 else 0.0)

    def times(self, factor: float) -> Spread:
        return Spread(
            mean=None if self.mean is None else self.mean * factor, std=None if self.std is None else self.std * factor
        )


class ByMetric(Record, Generic[T]):
    """Something for each metric that was measured; a metric that was not measured is unset."""

    perplexity: T | None = None
    loss: T | None = None
    token_agreement: T | None = None
    cosine: T | None = None
    neighbour_agreement: T | None = None
    ndcg10: T | None = Field(default=None, description="known-item retrieval: a first sentence finds its paragraph")
    wer: T | None = Field(default=None, description="word error rate of a speech model; lower is better")
    top1: T | None = None
    agreement: T | None = None

    _finite = field_validator("*", mode="before")(finite_number)

    def names(self) -> list[str]:
        """The metrics that were measured, in order."""
        return [name for name in type(self).model_fields if name in self.model_fields_set]

    def __getitem__(self, name: str) -> T | None:
        value: T | None = getattr(self, name)
        return value

    def items(self) -> Iterator[tuple[str, T | None]]:
        return ((name, self[name]) for name in self.names())


def _known(name: str) -> str:
    if name not in ByMetric.model_fields:
        raise ValueError(f"unknown metric {name!r}; there are {', '.join(ByMetric.model_fields)}")
    return name


MetricName = Annotated[str, AfterValidator(_known)]
"""The name of a metric that exists."""

Metrics = ByMetric[float]
"""The metrics of one model; None where it gives no number any more."""
Spreads = ByMetric[Spread]
"""The same over several calibrations or seeds."""


def spreads(runs: list[Metrics]) -> Spreads:
    """Each metric over the runs."""
    return Spreads(**{name: Spread.of([run[name] for run in runs]) for name in runs[0].names()})


class Yardstick(Record):
    """What a model was measured by: its task, the metric to look at first, and what a loss of it is called."""

    task: MeasuredTask
    primary: MetricName
    better: Better
    scale: list[float]


def better_of(metric: str) -> Better:
    """In which direction a metric improves."""
    return "lower" if metric in LOWER_IS_BETTER else "higher"


def cost(before: float | None, after: float | None, better: str) -> float | None:
    """How much is lost, on the scale of `SCALES`; infinite for a model that gives no number any more."""
    if before is None or before <= 0:
        return None
    if after is None:
        return math.inf
    return (before - after) / before if better == "higher" else math.log(after / before)


def effect(before: float | None, after: float | None, better: Better) -> str:
    """The loss in one word: `none`, `little`, `harm`, `broken`, or `unknown`."""
    lost = cost(before, after, better)
    if lost is None:
        return "unknown"
    nothing, little, broken = SCALES[better]
    return "none" if lost <= nothing else "little" if lost <= little else "harm" if lost <= broken else "broken"


class ByGranularity(Record, Generic[U]):
    """Something for weights with one scale per tensor, and for weights with one scale per channel."""

    per_tensor: U
    per_channel: U

    def items(self) -> list[tuple[str, U]]:
        """Both by the names that people read."""
        return [("per-tensor", self.per_tensor), ("per-channel", self.per_channel)]
