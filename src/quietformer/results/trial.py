"""The report of one run of a study: how it was trained, and its metrics in fp32, quantized and as real INT8."""

from __future__ import annotations

from typing import Any, Generic, Literal, Self, TypeVar

from pydantic import Field, JsonValue, model_validator

from quietformer.config.study import Measures, Trial, bits_title
from quietformer.config.tasks import MeasuredTask
from quietformer.results import numbers
from quietformer.results.base import Number, Record, Report
from quietformer.results.data import DataInfo
from quietformer.results.export import ExportFacts
from quietformer.results.inspect import Headline
from quietformer.results.quality import Better, MetricName, Metrics, Spreads
from quietformer.results.spec_serialization import MeasuresField, RecipeField
from quietformer.results.tables import Table

T = TypeVar("T")

Values = dict[str, JsonValue]
"""Values by field: a point of a grid, or what the paper reports of a run."""


class CurvePoint(Record):
    """Loss and outliers at one step of training."""

    step: int
    loss: Number = None
    ffn_infinity_norm: Number = None
    ffn_kurtosis: Number = None
    dead_rows: Number = None
    gate_openness: Number = None


class Baselines(Record, Generic[T]):
    """What a model must beat to have learned anything."""

    bigram_perplexity: T | None = Field(default=None, description="perplexity of counting which token follows which")
    majority_accuracy: T | None = Field(default=None, description="accuracy of always answering the largest class")

    def values(self) -> list[T]:
        return [value for value in (self.bigram_perplexity, self.majority_accuracy) if value is not None]


class RealInt8(ExportFacts):
    """A run as real INT8: its metrics, size and speed, or why it could not be exported."""

    metrics: Metrics | None = None


class TrialResult(Record):
    """What one run gave."""

    attention: str
    parameters: int
    steps: int
    seconds: float = Field(description="seconds of training")
    task: MeasuredTask
    primary: MetricName = Field(description="the metric to look at first")
    better: Better
    fp32: Metrics
    quantized: dict[str, Spreads] = Field(description="metrics over calibrations, by bits")
    real: RealInt8 | None = None
    outliers: Headline | None = None
    baselines: Baselines[Number] = Field(default_factory=Baselines[Number])
    curve: list[CurvePoint] = Field(default_factory=list)
    paper: Values = Field(default_factory=dict, description="what the paper reports of this run, at its own size")
    data: DataInfo = Field(default_factory=DataInfo)

    def last(self, name: str) -> float | None:
        """The last point of the curve that has this measure."""
        return next(iter(reversed(self.points(name))), None)

    def points(self, name: str) -> list[float]:
        """A measure over the steps, where it was taken."""
        return [value for point in self.curve if (value := getattr(point, name)) is not None]


class TrialRun(Record):
    """One run of a study: its place in the grid, its random seed, and either a result or why it failed."""

    name: str
    at: Values = Field(description="its point of the grid")
    seed: int
    elsewhere: str | None = Field(default=None, description="machine and folder, if it ran on another machine")
    failed: str | None = None
    result: TrialResult | None = None

    @model_validator(mode="after")
    def _failed_or_not(self) -> Self:
        if (self.failed is None) == (self.result is None):
            raise ValueError("a run has either a result or a failure")
        return self

    def in_one_line(self) -> str:
        """`gated,seed=0: perplexity 22.80, W8A8 22.90; largest value 9; 1.5 min`."""
        found = self.result
        if found is None:
            return f"{self.name} failed: {self.failed}"
        fp32 = numbers.mean_and_std(found.fp32[found.primary], None, found.primary)
        parts = [f"{found.primary} {fp32}"]
        for bits, spreads in found.quantized.items():
            spread = spreads[found.primary]
            mean = None if spread is None else spread.mean
            parts.append(f"{bits_title(bits)} {numbers.mean_and_std(mean, None, found.primary)}")
        largest = None if found.outliers is None else found.outliers.infinity_norm
        norm = "" if largest is None else f"; largest value {numbers.significant(largest)}"
        return f"{self.name}: {', '.join(parts)}{norm}; {numbers.one_place(found.seconds / 60)} min"


class TrialKey(Record):
    """What a run is made with: a result in the folder counts only if it was made with the same."""

    recipe: RecipeField
    measures: MeasuresField

    @classmethod
    def of(cls, trial: Trial, measures: Measures) -> TrialKey:
        """As its JSON gives it back, so that it equals what was saved."""
        made = cls(recipe=trial.recipe, measures=measures)
        return cls.model_validate_json(made.model_dump_json())


class TrialReport(Report, TrialRun):
    """One run of a study, as it is saved in its folder."""

    kind: Literal["trial"] = "trial"
    key: TrialKey

    @classmethod
    def made(cls, trial: Trial, measures: Measures, **outcome: Any) -> TrialReport:
        """Of this trial, with `result`, or with `failed` and the reason."""
        key = TrialKey.of(trial, measures)
        return cls(key=key, name=trial.name, at=trial.at, seed=trial.seed, **outcome)

    def run(self) -> TrialRun:
        """What the report of the study keeps of it."""
        known = TrialRun.model_fields.keys() & self.model_fields_set
        return TrialRun(**{name: getattr(self, name) for name in TrialRun.model_fields if name in known})

    def sentences(self) -> list[str]:
        return [self.in_one_line()]

    def tables(self) -> list[Table]:
        found = self.result
        if found is None:
            return []
        real = None if found.real is None else found.real.metrics
        columns = ["metric", "fp32", *(bits_title(bits) for bits in found.quantized), *(["real INT8"] if real else [])]
        rows = []
        for name, value in found.fp32.items():
            means = [None if (spread := spreads[name]) is None else spread.mean for spreads in found.quantized.values()]
            exported = [] if real is None else [real[name]]
            rows.append([name, *(numbers.metric(number, name) for number in (value, *means, *exported))])
        return [Table(self.name, columns, rows)]
