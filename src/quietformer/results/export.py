"""The report of `export`: real INT8 beside fp32 and the simulation, its size, its speed, and what other tools give."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from quietformer.results import numbers
from quietformer.results.base import Record
from quietformer.results.provenance import versions
from quietformer.results.quality import Metrics
from quietformer.results.quantize import SimulatedReport
from quietformer.results.tables import Table


class FileSizes(Record):
    """Bytes of the fp32 and the INT8 model."""

    fp32: int
    int8: int


class LatencyRow(Record):
    """Median milliseconds of one batch shape."""

    batch: int
    length: int | None
    torch_fp32_ms: float
    onnx_fp32_ms: float
    onnx_int8_ms: float
    speedup: float

    @property
    def shape(self) -> str:
        return f"batch {self.batch}" + (f", {self.length} tokens" if self.length else "")


class Agreement(Record):
    """How close real INT8 is to its simulation."""

    cosine: float
    equal: float = Field(description="share of output values that are equal to 1e-5 of the largest")


class ExportFacts(Record):
    """What an exported model takes, and how close it is to its simulation."""

    latency: list[LatencyRow] = Field(default_factory=list)
    bytes: FileSizes | None = None
    threads: int | None = None
    agreement: Agreement | None = None
    error: str | None = Field(default=None, description="why a graph was not exported")


class ExportDetails(Record):
    """What was written, and how it agrees with torch and the simulation."""

    model: str
    output: str
    label: str
    weights: int
    activations: int
    weight_type: str
    fp32_difference: float = Field(
        description="largest difference of fp32 ONNX from torch, relative to the largest value"
    )
    cosine_to_simulation: float
    equal_to_simulation: float = Field(description="share of output values that are equal to 1e-5 of the largest")
    signed_equal: bool | None
    bytes: FileSizes
    latency: list[LatencyRow] = Field(default_factory=list)
    threads: int = 0
    versions: dict[str, str] = Field(default_factory=versions)

    def facts(self) -> ExportFacts:
        """The same in short."""
        agreement = Agreement(cosine=self.cosine_to_simulation, equal=self.equal_to_simulation)
        return ExportFacts(latency=self.latency, bytes=self.bytes, threads=self.threads, agreement=agreement)


class BaselineRow(Record):
    """What another tool gives on the same model and data."""

    name: str
    what: str
    metrics: Metrics | None = None
    bytes: int | None = None
    seconds: float | None = None
    error: str | None = None


class SearchStep(Record):
    """One step of the search for INT8 with the least error."""

    name: str
    what: str
    error: float | None = Field(description="1 - mean cosine of the output to that of fp32; None if it was not tried")
    kept: bool


class ExportReport(SimulatedReport):
    """A model as real INT8."""

    kind: Literal["export"] = "export"
    real: Metrics
    export: ExportDetails
    baselines: list[BaselineRow] = Field(default_factory=list)
    steps: list[SearchStep] = Field(default_factory=list, description="what the search tried; empty without a search")

    def sentences(self) -> list[str]:
        made = self.export
        size, equal = numbers.percent(made.bytes.int8 / made.bytes.fp32), numbers.percent(made.equal_to_simulation)
        cosine = numbers.metric(made.cosine_to_simulation, "cosine")
        lines = [
            self.model.title,
            f"{size} of the size; {made.weight_type} weights; mean cosine of a token to the simulation {cosine}, {equal} of "
            f"the values equal; fp32 ONNX differs from torch by {numbers.tiny(made.fp32_difference)}",
        ]
        return lines + [f"  {row.name}: {row.error or row.what}" for row in self.baselines]

    def tables(self) -> list[Table]:
        names, made = self.fp32.names(), self.export
        rows: list[tuple[str, Metrics | None, str]] = [
            ("fp32 ONNX", self.fp32, numbers.megabytes(made.bytes.fp32)),
            ("simulated", self.runs[0].metrics, ""),
            ("real INT8 ONNX", self.real, numbers.megabytes(made.bytes.int8)),
        ]
        for row in self.baselines:
            size = "" if row.bytes is None else numbers.megabytes(row.bytes)
            rows.append((row.name, row.metrics, "failed" if row.error else size))
        cells = [[name, *(_cell(values, metric) for metric in names), size] for name, values, size in rows]
        title = f"{self.model.name}, {self.label}"
        return [*self._search_tables(), Table(title, ["model", *names, "MB"], cells), *self._latency_tables()]

    def _search_tables(self) -> list[Table]:
        """What each step of the search brought; nothing without a search."""
        if not self.steps:
            return []
        rows = [
            [step.name, step.what, numbers.MISSING if step.error is None else numbers.tiny(step.error), _yes(step.kept)]
            for step in self.steps
        ]
        return [Table("Search: error of the output (1 - cosine)", ["step", "what", "error", "kept"], rows)]

    def _latency_tables(self) -> list[Table]:
        """Nothing if no time was measured."""
        made = self.export
        if not made.latency:
            return []
        columns = ["batch", "length", "torch fp32", "ONNX fp32", "ONNX INT8", "speedup"]
        rows = [
            [
                str(row.batch), str(row.length or numbers.MISSING),
                *map(numbers.one_place, (row.torch_fp32_ms, row.onnx_fp32_ms, row.onnx_int8_ms)),
                numbers.two_places(row.speedup),
            ]
            for row in made.latency
        ]  # fmt: skip
        return [Table(f"Milliseconds, {numbers.counted(made.threads, 'thread')}", columns, rows, frozenset())]


def _yes(kept: bool) -> str:
    return "yes" if kept else "no"


def _cell(values: Metrics | None, name: str) -> str:
    return numbers.MISSING if values is None or name not in values.names() else numbers.metric(values[name], name)
