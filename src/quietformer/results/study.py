"""The report of `compare` and `sweep`: all runs of a study, and one table over them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from quietformer.config.tasks import MeasuredTask
from quietformer.results.base import Report
from quietformer.results.quality import Better, MetricName
from quietformer.results.spec_serialization import StudyField
from quietformer.results.study_table import StudyRow, failures, legend, not_exported, study_table
from quietformer.results.tables import Table
from quietformer.results.trial import TrialRun


class StudyReport(Report):
    """Many runs under equal conditions; what they were measured by is None if none of them finished."""

    kind: Literal["study"] = "study"
    name: str
    about: str = ""
    paper: str = Field(default="", description="what the paper says about this question")
    study: StudyField
    task: MeasuredTask | None
    primary: MetricName | None = Field(description="the metric to look at first")
    better: Better | None
    scale: list[float] | None = Field(description="limits of what a loss in quality is called")
    sentence: str
    rows: list[StudyRow]
    trials: list[TrialRun]

    @property
    def metric(self) -> str:
        """The primary metric, or nothing if no run finished."""
        return self.primary or ""

    @property
    def finished(self) -> int:
        """How many runs finished."""
        return sum(run.result is not None for run in self.trials)

    def effect(self, row: StudyRow, column: str = "quantized") -> str:
        """What quantization does to a setting, in one word."""
        return row.effect(self.better, column)

    def failures(self) -> list[str]:
        return failures(self.rows)

    def sentences(self) -> list[str]:
        """What quantization does, then what went wrong."""
        return [self.sentence, *self.failures(), *not_exported(self.rows)]

    def tables(self) -> list[Table]:
        return [study_table(self.name, self.rows, self.metric)]

    def footnotes(self) -> list[str]:
        """What the columns mean, and what the paper says."""
        return legend(self.rows, self.metric) + ([f"The paper: {self.paper}"] if self.paper else [])
