"""A model before and after a change: what is measured of each side, and the two compared."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from pydantic import Field

from quietformer.results import numbers
from quietformer.results.base import Number, Record
from quietformer.results.export import ExportFacts, ModelKind
from quietformer.results.inspect import InspectReport
from quietformer.results.quality import SCALES, Better, ByGranularity, Metrics, Spreads, Yardstick, better_of, cost

LATENCY_NOISE, SIZE_NOISE = 0.15, 0.02
"""Changes within these shares are the machine's, or a gate's few weights, and neither good nor bad news."""


class RealSide(ExportFacts):
    """Real INT8 (ONNX Runtime); metrics that were not measured are unset."""

    per_tensor: Metrics = Field(default_factory=Metrics)
    per_channel: Metrics = Field(default_factory=Metrics)


def _nothing_simulated() -> ByGranularity[Spreads]:
    return ByGranularity[Spreads](per_tensor=Spreads(), per_channel=Spreads())


class Side(Record):
    """A model before or after: its outliers, and what quantization, simulated and real, leaves of it.

    What was not measured is there all the same, with its metrics unset.
    """

    inspect: InspectReport
    fp32: Metrics = Field(default_factory=Metrics)
    simulated: ByGranularity[Spreads] = Field(default_factory=_nothing_simulated)
    real: RealSide = Field(default_factory=RealSide)

    def int8(self, metric: str) -> tuple[float | None, str]:
        """A metric in INT8 with per-channel weights, and which INT8 it is: real where there is an export."""
        if metric in self.real.per_channel.names():
            return self.real.per_channel[metric], "real INT8"
        return mean_of(self.simulated.per_channel, metric), "simulated INT8"


class ComparisonRow(Record):
    """One line of the table that people read first; changes within the share `noise` mean nothing."""

    what: str
    before: Number
    after: Number
    better: Better
    noise: float = 0.0

    def cells(self) -> list[str]:
        """The row as people read it."""
        metric = self.what.rpartition(": ")[2]
        return [self.what.replace("_", " "), *(numbers.measured(value, metric) for value in (self.before, self.after))]


def mean_of(found: Spreads, metric: str) -> float | None:
    """None if the metric was not measured, or the model gives no number."""
    spread = found[metric]
    return None if spread is None else spread.mean


def verdict_on(before: Side, after: Side, yardstick: Yardstick) -> str:
    """What INT8 still costs, against the original; a run that healed nothing must not sound as if it had."""
    metric, better = yardstick.primary, yardstick.better
    original = before.fp32[metric]
    took, lost = (cost(original, side.int8(metric)[0], better) for side in (before, after))
    nothing, little, broken = SCALES[better]
    if lost is None or took is None:
        return "There is nothing to compare with."
    if lost <= nothing:
        return "Healed: INT8 costs next to nothing now."
    if lost <= little:
        return "Healed: INT8 costs a little now."
    again = "more steps and more text of its own kind may help"
    if lost > broken:
        return f"INT8 still breaks it; {again}."
    if lost <= took / 2:
        back = "Nearly all" if math.isinf(took) else numbers.percent(1 - lost / took, 0)
        return f"{back} of what INT8 took is back; it still costs some quality, and {again}."
    return f"INT8 still costs it quality; {again}."


def side_in_words(side: Side, metric: str) -> str:
    """`real INT8 has cosine 0.1921 (fp32 1.0000); FFN outputs reach 195, kurtosis up to 40,727`."""
    value, which = side.int8(metric)
    reach, kurtosis = side.inspect.extremes()
    return (
        f"{which} has {metric} {numbers.metric(value, metric)} (fp32 {numbers.metric(side.fp32[metric], metric)}); "
        f"FFN outputs reach {numbers.rough(reach)}, kurtosis up to {numbers.whole(kurtosis)}"
    )


def beside_balancing(alone: ByGranularity[Spreads] | None, after: Side, yardstick: Yardstick) -> str:
    """What balancing alone gives, and a word where a run was too short to make up for what training itself costs."""
    metric = yardstick.primary
    untrained = None if alone is None else mean_of(alone.per_channel, metric)
    if untrained is None:
        return ""
    trained = mean_of(after.simulated.per_channel, metric)
    told = f"Balanced and not trained, simulated INT8 has {metric} {numbers.metric(untrained, metric)}"
    ahead = trained is None or (untrained != trained and (untrained > trained) == (yardstick.better == "higher"))
    if not ahead:
        return f"{told}."
    return f"{told}, which is better than after these steps: give more steps, or export the original with --balance."


Measured = Callable[[Side], float | None]


def comparison(before: Side, after: Side) -> list[ComparisonRow]:
    """What was measured on either side, line by line."""
    rows: list[ComparisonRow] = []

    def row(what: str, measured: Measured, better: Better, noise: float = 0.0) -> None:
        values = [measured(side) for side in (before, after)]
        if any(value is not None for value in values):
            rows.append(ComparisonRow(what=what, before=values[0], after=values[1], better=better, noise=noise))

    row("largest FFN output", lambda side: side.inspect.extremes()[0], "lower")
    row("largest kurtosis of FFN outputs", lambda side: side.inspect.extremes()[1], "lower")
    for metric in before.fp32.names():
        for what, measured in _ways(metric):
            row(f"{what}: {metric}", measured, better_of(metric))
    row("INT8 model, MB", lambda side: _megabytes(side, "int8"), "lower", SIZE_NOISE)
    row("fp32 model, MB", lambda side: _megabytes(side, "fp32"), "lower", SIZE_NOISE)
    for place, timed in enumerate(after.real.latency):
        row(f"INT8, ms ({timed.shape})", _latency(place, "int8"), "lower", LATENCY_NOISE)
        row(f"fp32 ONNX, ms ({timed.shape})", _latency(place, "fp32"), "lower", LATENCY_NOISE)
    return rows


def _ways(metric: str) -> list[tuple[str, Measured]]:
    """Every way in which a metric is measured, and where a side has it."""
    return [
        ("fp32", lambda side: side.fp32[metric]),
        ("simulated W8A8, per-tensor weights", lambda side: mean_of(side.simulated.per_tensor, metric)),
        ("real INT8, per-tensor weights", lambda side: side.real.per_tensor[metric]),
        ("simulated W8A8, per-channel weights", lambda side: mean_of(side.simulated.per_channel, metric)),
        ("real INT8, per-channel weights", lambda side: side.real.per_channel[metric]),
    ]


def _megabytes(side: Side, kind: Literal["int8", "fp32"]) -> float | None:
    sizes = side.real.bytes
    return None if sizes is None else (sizes.int8 if kind == "int8" else sizes.fp32) / 1e6


def _latency(place: int, kind: ModelKind) -> Measured:
    """The fastest turn in ONNX Runtime; in earlier reports the median."""

    def measured(side: Side) -> float | None:
        rows = side.real.latency
        run = rows[place].run("onnxruntime", kind) if place < len(rows) else None
        return None if run is None else run.best_ms

    return measured
