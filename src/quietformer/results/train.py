"""The report of `train`: how good the model is, its outliers, and the log of the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue

from quietformer.results import numbers
from quietformer.results.base import Number, Record, Report, finite_number
from quietformer.results.data import DataInfo
from quietformer.results.inspect import Headline
from quietformer.results.run_upgrades import renamed_metrics
from quietformer.results.tables import Table

LogValue = Annotated[int | float | None, BeforeValidator(finite_number)]
LogLine = dict[str, LogValue]
"""What the Trainer logged at one step, by name: loss, learning_rate, outliers/..., eval_..., and always the step."""


def log_lines(history: Iterable[Mapping[str, float]]) -> list[LogLine]:
    """A Trainer's log; a run that an earlier release began has a metric under its old name."""
    return [renamed_metrics(row) for row in history]


class Validation(Record):
    """The last evaluation; which fields are set follows from the task."""

    nll: Number = Field(default=None, description="mean negative log-likelihood")
    perplexity: Number = None
    accuracy: Number = None
    fp32: Number = Field(default=None, description="a student's agreement with its teacher in fp32")
    int8: Number = Field(default=None, description="the same in simulated INT8")


class Best(Record):
    """The evaluation whose checkpoint is kept; no step if none gave a number."""

    step: int | None
    value: Number
    measure: str


class TrainReport(Report):
    """One training run."""

    kind: Literal["train"] = "train"
    recipe: str
    attention: str
    seed: int
    steps: int
    data: DataInfo
    validation: Validation
    parameters: int
    outliers: Headline | None = Field(default=None, description="unset where the model's blocks are not known")
    outliers_unknown: str | None = Field(default=None, description="why there are no outliers")
    best: Best | None = Field(default=None, description="of a distillation: what is kept")
    bigram_perplexity: Number = Field(default=None, description="of a bigram model on the same text, to compare with")
    majority_accuracy: Number = Field(default=None, description="of always giving the largest class")
    seconds: float
    steps_per_second: float
    processes: int = 1
    paper: dict[str, JsonValue] = Field(default_factory=dict, description="the paper's results for this recipe")
    log: list[LogLine] = Field(default_factory=list)

    def sentences(self) -> list[str]:
        lines = [f"{self.recipe}  {self.attention}, seed {self.seed}", self._quality()]
        if (found := self.outliers) is not None:
            norm, kurtosis = (numbers.significant(value) for value in (found.infinity_norm, found.kurtosis))
            lines.append(f"outliers: infinity norm {norm}, kurtosis {kurtosis}")
        return [*lines, f"{numbers.counted(self.steps, 'step')}, {numbers.two_places(self.steps_per_second)} a second"]

    def _quality(self) -> str:
        found, shown = self.validation, numbers.significant
        if self.best is not None:
            best = self.best
            kept = "none was" if best.value is None else f"{shown(best.value)} at step {numbers.whole(best.step)} was"
            return (
                f"{best.measure} against the original: {shown(found.fp32)}, in simulated INT8 {shown(found.int8)}; the best, "
                f"{kept}, is kept"
            )
        if "perplexity" in found.model_fields_set:
            bigram = self.bigram_perplexity
            beside = "" if bigram is None else f"  (a bigram model: {shown(bigram)})"
            return f"validation perplexity {shown(found.perplexity)}{beside}"
        largest = (
            ""
            if self.majority_accuracy is None
            else f"  (the largest class: {numbers.percent(self.majority_accuracy, 2)})"
        )
        accuracy = numbers.BROKEN if found.accuracy is None else numbers.percent(found.accuracy, 2)
        return f"validation accuracy {accuracy}{largest}"

    def tables(self) -> list[Table]:
        rows = [[name, numbers.significant(getattr(self.validation, name))] for name in _set_fields(self.validation)]
        return [Table(f"{self.recipe}, step {numbers.whole(self.steps)}", ["validation", "value"], rows)]


def _set_fields(record: Record) -> list[str]:
    return [name for name in type(record).model_fields if name in record.model_fields_set]
