"""The report of `quantize`: what simulated quantization costs, and which tensors are to blame."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from quietformer.results import numbers
from quietformer.results.annihilation import AnnihilatedTensor, RoundedToZero, annihilated_tables, annihilated_words
from quietformer.results.base import Number, Record, Report
from quietformer.results.data import DataInfo
from quietformer.results.model import ModelInfo
from quietformer.results.quality import Metrics, Spreads, Yardstick, effect
from quietformer.results.spec_serialization import QuantSpecField
from quietformer.results.tables import Table

EFFECTS = {
    "broken": "breaks this model",
    "harm": "costs this model quality",
    "little": "costs this model a little",
    "none": "costs this model next to nothing",
}


class PlannedTensor(Record):
    """A tensor that is quantized: its name, the name every family shares, and its grid (`s8@0`)."""

    site: str
    short: str
    role: Literal["weight", "activation"]
    grid: str


class KeptTensor(Record):
    """A tensor that stays in full precision, and why."""

    site: str
    why: str


class PlanInfo(Record):
    """Which tensors are quantized, and which are not."""

    spec: QuantSpecField
    weights: int
    activations: int
    sites: list[PlannedTensor]
    left: list[KeptTensor]

    @property
    def amount(self) -> str:
        """`12 weights and 31 activations`."""
        return f"{numbers.counted(self.weights, 'weight')} and {numbers.counted(self.activations, 'activation')}"

    def tensor_tables(self) -> list[Table]:
        """What is quantized and on which grid, and what is not and why."""
        quantized = [[site.short if site.short != site.site else "", site.grid, site.site] for site in self.sites]
        found = [
            Table(f"{self.spec.label}: quantized", ["short name", "grid", "tensor"], quantized, frozenset({0, 1, 2}))
        ]
        if self.left:
            kept = [[item.site, item.why] for item in self.left]
            found.append(Table("kept in full precision", ["tensor", "why"], kept, frozenset({0, 1})))
        return found


class QuantizationPlanReport(Report, PlanInfo):
    """What `quantize` would quantize, and what not and why."""

    kind: Literal["quantization_plan"] = "quantization_plan"
    model: ModelInfo

    def sentences(self) -> list[str]:
        return [
            self.model.title,
            f"{self.amount} would be quantized.",
        ]

    def tables(self) -> list[Table]:
        return self.tensor_tables()

    def footnotes(self) -> list[str]:
        return [
            "Grids: s8 is symmetric with 8 bits, u8 asymmetric, s8@0 has a scale for each channel of dimension 0, s8@token one "
            "for each token."
        ]


class CalibrationRun(Record):
    """The metrics after one calibration."""

    seed: int
    metrics: Metrics


class SearchedEstimator(Record):
    """One way of finding the ranges of activations, and what it gave on the calibration data."""

    activations: str
    metrics: Metrics


class TensorSensitivity(PlannedTensor, RoundedToZero):
    """What quantizing one tensor does: its range, its noise, the metric with it alone and with all but it.

    `token_spread` is the largest range of a token as a multiple of the median one.
    """

    lo: float
    hi: float
    sqnr_db: float | None
    only: Number = None
    without: Number = None
    token_spread: Number = None


class Sensitivity(Record):
    """Every quantized tensor, the worst first; `measure` is None where only the noise was measured."""

    measure: str | None
    sequences: int | None = None
    everything: Number
    nothing: Number
    rows: list[TensorSensitivity]


class SimulatedReport(Report, Yardstick):
    """What `quantize` and `export` share: a model, how it was quantized, and its metrics in simulation."""

    model: ModelInfo
    label: str
    spec: QuantSpecField
    plan: PlanInfo | None = None
    fp32: Metrics
    runs: list[CalibrationRun]
    quantized: Spreads
    search: list[SearchedEstimator] = Field(default_factory=list)
    data: DataInfo

    def in_words(self) -> str:
        """`W8A8 breaks this model: cosine 1.0000 -> 0.8354.`"""
        before, spread = self.fp32[self.primary], self.quantized[self.primary]
        after = None if spread is None else spread.mean
        found = effect(before, after, self.better)
        if found == "unknown" or before is None:
            return f"{self.label}: there is nothing to compare {self.primary} with."
        shown = "no number" if after is None else numbers.metric(after, self.primary)
        return f"{self.label} {EFFECTS[found]}: {self.primary} {numbers.metric(before, self.primary)} -> {shown}."


class QuantizeReport(SimulatedReport):
    """What simulated quantization costs a model."""

    kind: Literal["quantize"] = "quantize"
    plan: PlanInfo
    sensitivity: Sensitivity
    annihilated: list[AnnihilatedTensor] | None = None

    def sentences(self) -> list[str]:
        return [
            self.model.title,
            f"{self.plan.amount} quantized ({self.spec.label})",
            self.in_words(),
            *annihilated_words(self.annihilated),
        ]

    def tables(self) -> list[Table]:
        found = [self._metrics_table()]
        if self.search:
            rows = [[row.activations, numbers.metric(row.metrics[self.primary], self.primary)] for row in self.search]
            found.append(
                Table("Range estimators of activations, on the calibration data", ["activations", self.primary], rows)
            )
        return [*found, self._sensitivity_table(), *annihilated_tables(self.annihilated)]

    def _metrics_table(self) -> Table:
        unit = "images" if self.task == "images" else "sequences"
        rows = []
        for name, value in self.fp32.items():
            spread = self.quantized[name]
            mean, std = (None, None) if spread is None else (spread.mean, spread.std)
            deviation = f" ± {numbers.deviation(std)}" if std is not None and len(self.runs) > 1 else ""
            rows.append([name, numbers.metric(value, name), f"{numbers.metric(mean, name)}{deviation}"])
        title = (
            f"{self.label}, {self.data.evaluation_sequences} {unit}, {numbers.counted(len(self.runs), 'calibration')}"
        )
        return Table(title, ["metric", "fp32", "quantized"], rows)

    def _sensitivity_table(self) -> Table:
        measure = self.sensitivity.measure
        columns = ["tensor", "grid", "range", "SQNR dB"]
        columns += [f"{measure}, it alone", f"{measure}, all but it"] if measure else []
        rows = []
        for row in self.sensitivity.rows[:8]:
            cells = [row.short, row.grid, numbers.span(row.lo, row.hi), numbers.one_place(row.sqnr_db)]
            if measure:
                cells += [numbers.metric(row.only, measure), numbers.metric(row.without, measure)]
            rows.append(cells)
        return Table(f"{'Most harmful' if measure else 'Noisiest'} tensors", columns, rows)
