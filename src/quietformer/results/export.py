"""The report of `export`: real INT8 beside fp32 and the simulation, its size, its speed, and what other tools give."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from quietformer.results import numbers
from quietformer.results.base import Record
from quietformer.results.provenance import versions
from quietformer.results.quality import Metrics
from quietformer.results.quantize import SimulatedReport
from quietformer.results.tables import Table
from quietformer.results.upgrades import details_with_runtimes, latency_with_runs

OVERFLOW = (
    "This processor has no VNNI and adds pairs of INT8 products in 16 bits, where signed weights overflow. The ONNX model "
    "avoids it with unsigned weights; OpenVINO has signed weights only, so use ONNX Runtime here. With VNNI nothing overflows."
)


class FileSizes(Record):
    """Bytes of the fp32 and the INT8 model."""

    fp32: int
    int8: int


RuntimeName = Literal["torch", "onnxruntime", "openvino"]
ModelKind = Literal["fp32", "int8"]
TITLES: dict[RuntimeName, str] = {"torch": "torch", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}


class TimedRun(Record):
    """Milliseconds of one model in one runtime; competitors took turns."""

    runtime: RuntimeName
    kind: ModelKind
    precision: str = Field(default="f32", description="what the runtime computes in, but for integer products")
    fastest_ms: float | None = Field(default=None, description="earlier reports have only the median")
    median_ms: float

    @property
    def title(self) -> str:
        return f"{TITLES[self.runtime]} {'INT8' if self.kind == 'int8' else 'fp32'}"

    @property
    def best_ms(self) -> float:
        return self.median_ms if self.fastest_ms is None else self.fastest_ms


class LatencyRow(Record):
    """One batch shape, in every runtime."""

    batch: int
    length: int | None
    runs: list[TimedRun]

    _upgrade = model_validator(mode="before")(latency_with_runs)

    @property
    def shape(self) -> str:
        return f"batch {self.batch}" + (f", {self.length} tokens" if self.length else "")

    @property
    def short(self) -> str:
        return f"{self.batch} x {self.length}" if self.length else f"batch {self.batch}"

    def run(self, runtime: RuntimeName, kind: ModelKind) -> TimedRun | None:
        """The first such run: as the runtime sets itself up."""
        return next((run for run in self.runs if (run.runtime, run.kind) == (runtime, kind)), None)

    def speedup(self, run: TimedRun) -> float | None:
        """Against ONNX Runtime in fp32; by the fastest turns, or by medians in earlier reports."""
        base = self.run("onnxruntime", "fp32")
        return None if base is None else base.best_ms / run.best_ms


class Agreement(Record):
    """How close real INT8 is to its simulation."""

    cosine: float = Field(description="mean over tokens, or over rows of logits")
    embedding_cosine: float | None = Field(
        default=None, description="of the mean over the tokens of a sequence; None for a model with a head"
    )
    equal: float = Field(description="share of output values that are equal to 1e-5 of the largest")

    @property
    def judged(self) -> float:
        """Of what is used of the model: its embeddings, or else its tokens or logits."""
        return self.cosine if self.embedding_cosine is None else self.embedding_cosine


class ExportFacts(Record):
    """What an exported model takes, and how close it is to its simulation."""

    latency: list[LatencyRow] = Field(default_factory=list)
    bytes: FileSizes | None = None
    threads: int | None = None
    instruction_set: str | None = None
    agreement: Agreement | None = None
    error: str | None = Field(default=None, description="why a graph was not exported")


class RuntimeDetails(Record):
    """INT8 in one runtime, and how it agrees with the simulation."""

    runtime: RuntimeName
    file: str | None = Field(default=None, description="relative to the folder")
    bytes: int | None = None
    precision: str = Field(
        default="f32", description="what the runtime computes in by default, but for integer products"
    )
    agreement: Agreement | None = Field(default=None, description="as the runtime computes by default")
    agreement_in_f32: Agreement | None = Field(
        default=None, description="told to compute in f32, where that is not its default"
    )
    error: str | None = Field(default=None, description="why there is none for this runtime")


FOLDER_FORMAT = 1
"""Version of an exported folder; raised when an earlier release would misread it."""


class ShippedTarget(Record):
    """A client that the folder is laid out for, and how it loads it."""

    name: str
    install: str = Field(description="the package it comes with")
    language: str
    code: str = Field(description="in it the folder is called FOLDER")
    note: str = Field(default="", description="what there is to know about it")


class CardFields(Record):
    """What the card of a model says about where it comes from."""

    base_model: str | None = Field(default=None, description="the hub id of the model it was made from")
    license: str | list[str] | None = None
    license_name: str | None = None
    license_link: str | None = None
    language: list[str] = Field(default_factory=list)
    pipeline_tag: str | None = None


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
    runtimes: list[RuntimeDetails] = Field(description="the one that is looked at first comes first")
    signed_equal: bool | None = Field(
        description="whether signed weights gave what unsigned ones did on a processor where they can overflow; None if that "
        "was not tried, or the processor of the export cannot overflow"
    )
    bytes: FileSizes
    latency: list[LatencyRow] = Field(default_factory=list)
    threads: int = 0
    processor: str | None = None
    instruction_set: str | None = None
    versions: dict[str, str] = Field(default_factory=versions)
    inputs: list[str] = Field(default_factory=list, description="what the graph takes")
    targets: list[ShippedTarget] = Field(default_factory=list, description="clients the folder is laid out for")
    files: dict[str, str] = Field(
        default_factory=dict, description="SHA-256 of every file that clients read, by its place in the folder"
    )
    pooled: bool = Field(default=False, description="whether the graph also gives sentence_embedding")
    format: int = Field(default=FOLDER_FORMAT, description="version of the folder, which says who can read it")

    _upgrade = model_validator(mode="before")(details_with_runtimes)

    @property
    def agreement(self) -> Agreement:
        """Of the runtime that is looked at first."""
        found = self.runtimes[0].agreement
        assert found is not None
        return found

    def facts(self) -> ExportFacts:
        """The same in short."""
        names = ("latency", "bytes", "threads", "instruction_set", "agreement")
        return ExportFacts(**{name: getattr(self, name) for name in names})


class BaselineRow(Record):
    """What a tool gives on the same model and data; fp32 and this export stand beside the others."""

    name: str
    what: str
    runtime: str | None = None
    ours: bool = False
    metrics: Metrics | None = None
    bytes: int | None = None
    seconds: float | None = Field(default=None, description="of work, from the fp32 model to the one that runs")
    fastest_ms: float | None = Field(default=None, description="the first evaluation batch; all took turns")
    median_ms: float | None = None
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
    real: Metrics = Field(description="of the runtime that is looked at first")
    real_by_runtime: dict[RuntimeName, Metrics] = Field(default_factory=dict)
    export: ExportDetails
    baselines: list[BaselineRow] = Field(default_factory=list)
    steps: list[SearchStep] = Field(default_factory=list, description="what the search tried; empty without a search")
    card: CardFields = Field(default_factory=CardFields)

    def sentences(self) -> list[str]:
        made = self.export
        size = numbers.percent(made.bytes.int8 / made.bytes.fp32)
        lines = [
            self.model.title,
            f"{size} of the size; {made.weight_type} weights; fp32 ONNX differs from torch by "
            f"{numbers.tiny(made.fp32_difference)}",
        ]
        lines += [_agreement_in_words(runtime) for runtime in made.runtimes]
        if made.signed_equal is False and any(one.runtime == "openvino" and one.file for one in made.runtimes):
            lines.append(OVERFLOW)
        return lines + [f"  {row.name}: {row.error or row.what}" for row in self.baselines]

    def tables(self) -> list[Table]:
        names, made = self.fp32.names(), self.export
        rows: list[tuple[str, Metrics | None, int | None]] = [
            ("fp32", self.fp32, made.bytes.fp32),
            ("simulated INT8", self.runs[0].metrics, None),
        ]
        by_runtime = self.real_by_runtime or {made.runtimes[0].runtime: self.real}
        sizes = {one.runtime: one.bytes for one in made.runtimes} | {made.runtimes[0].runtime: made.bytes.int8}
        rows += [(f"real INT8, {TITLES[name]}", found, sizes[name]) for name, found in by_runtime.items()]
        cells = [[name, *(_cell(found, metric) for metric in names), _megabytes(size)] for name, found, size in rows]
        title = f"{self.model.name}, {self.label}"
        main = Table(title, ["model", *names, "MB"], cells)
        return [*self._search_tables(), main, *self._latency_tables(), *self._baseline_tables()]

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
        """A row for each runtime, a column for each batch shape; nothing if no time was measured."""
        timed, made = self.export.latency, self.export
        if not timed:
            return []
        fastest = any(run.fastest_ms is not None for run in timed[0].runs)
        where = ", ".join(filter(None, [numbers.counted(made.threads, "thread"), made.instruction_set]))
        shown = "fastest turn (median)" if fastest else "median"
        title = f"Milliseconds, {where}: {shown}; speed against ONNX Runtime fp32"
        rows = [
            [run.title, run.precision, *(_times(row.runs[place]) for row in timed), _factor(timed[-1], place)]
            for place, run in enumerate(timed[0].runs)
        ]
        columns = ["runtime", "rest in", *(row.short for row in timed), f"speed at {timed[-1].short}"]
        return [Table(title, columns, rows, frozenset({0, 1}))]

    def _baseline_tables(self) -> list[Table]:
        """Every tool in a line: at most two metrics, the fastest turn, the size and the work."""
        if not self.baselines:
            return []
        names = self.fp32.names()[:2]
        rows = [
            [
                row.name, *(_cell(row.metrics, name) for name in names), numbers.one_place(row.fastest_ms),
                "failed" if row.error else _megabytes(row.bytes), numbers.one_place(row.seconds),
            ]
            for row in self.baselines
        ]  # fmt: skip
        title = "Beside other tools: milliseconds of the first evaluation batch, megabytes, seconds of work"
        return [Table(title, ["tool", *names, "ms", "MB", "work"], rows)]


def _agreement_in_words(runtime: RuntimeDetails) -> str:
    title = TITLES[runtime.runtime]
    if runtime.agreement is None:
        return f"{title}: {runtime.error}"
    text = f"{title}, {runtime.precision} between integer products: mean cosine to the simulation "
    text += _closeness(runtime.agreement)
    return (
        text if runtime.agreement_in_f32 is None else f"{text}; told to use f32 {_closeness(runtime.agreement_in_f32)}"
    )


def _closeness(agreement: Agreement) -> str:
    equal = numbers.percent(agreement.equal)
    tokens = f"{numbers.metric(agreement.cosine, 'cosine')} ({equal} of the values equal)"
    if agreement.embedding_cosine is None:
        return tokens
    return f"{numbers.metric(agreement.embedding_cosine, 'cosine')} for embeddings, {tokens} for single tokens"


def _times(run: TimedRun) -> str:
    median = numbers.one_place(run.median_ms)
    return median if run.fastest_ms is None else f"{numbers.one_place(run.fastest_ms)} ({median})"


def _factor(row: LatencyRow, place: int) -> str:
    return numbers.two_places(row.speedup(row.runs[place]))


def _megabytes(size: int | None) -> str:
    return "" if size is None else numbers.megabytes(size)


def _yes(kept: bool) -> str:
    return "yes" if kept else "no"


def _cell(values: Metrics | None, name: str) -> str:
    return numbers.MISSING if values is None or name not in values.names() else numbers.metric(values[name], name)
