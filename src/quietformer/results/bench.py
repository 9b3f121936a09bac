"""The report of `bench`: latency, throughput and memory of an exported folder on this machine."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from quietformer.results import numbers
from quietformer.results.base import Record, Report
from quietformer.results.export import TITLES, LatencyRow, ModelKind, RuntimeName, TimedRun
from quietformer.results.tables import Table


class ModelMemory(Record):
    """One model file, and what running it takes beside the runtime itself."""

    runtime: RuntimeName
    kind: ModelKind
    file: str = Field(description="relative to the folder")
    bytes: int
    peak_bytes: int | None = Field(
        default=None,
        description="more than before loading, at most, while the largest shape runs; None if not measured",
    )

    @property
    def title(self) -> str:
        return f"{TITLES[self.runtime]} {'INT8' if self.kind == 'int8' else 'fp32'}"


class BenchReport(Report):
    """How fast a folder is here."""

    kind: Literal["bench"] = "bench"
    folder: str
    model: str
    rows: list[LatencyRow]
    memory: list[ModelMemory]
    threads: int
    processor: str
    instruction_set: str

    def sentences(self) -> list[str]:
        where = f"{self.processor} ({self.instruction_set}), {numbers.counted(self.threads, 'thread')}"
        lines = [f"{self.folder}: {self.model}", f"measured on {where}; the models take turns"]
        if not any(one.kind == "fp32" for one in self.memory):
            lines.append("fp32 is not in the folder; export with --keep-fp32 to have it beside INT8")
        return lines

    def tables(self) -> list[Table]:
        columns = ["model", *(row.short for row in self.rows)]
        times = [[run.title, *(_times(row.runs[place]) for row in self.rows)] for place, run in self._runs()]
        rates = [[run.title, *(_rate(row, row.runs[place]) for row in self.rows)] for place, run in self._runs()]
        found = [
            Table("Milliseconds a batch: fastest turn (median)", columns, times),
            Table("Sequences a second, at the median", columns, rates),
        ]
        if any(run.kind == "fp32" for _, run in self._runs()):
            speed = [
                [run.title, *(numbers.two_places(row.speedup(row.runs[place])) for row in self.rows)]
                for place, run in self._runs()
            ]
            found.append(Table("Speed against ONNX Runtime fp32", columns, speed))
        sizes = [[one.title, numbers.megabytes(one.bytes), _megabytes(one.peak_bytes)] for one in self.memory]
        return [*found, Table("Megabytes", ["model", "file", "memory"], sizes)]

    def _runs(self) -> list[tuple[int, TimedRun]]:
        return list(enumerate(self.rows[0].runs)) if self.rows else []


def _times(run: TimedRun) -> str:
    return f"{numbers.one_place(run.best_ms)} ({numbers.one_place(run.median_ms)})"


def _rate(row: LatencyRow, run: TimedRun) -> str:
    return numbers.one_place(1e3 * row.batch / run.median_ms)


def _megabytes(size: int | None) -> str:
    return numbers.MISSING if size is None else numbers.megabytes(size)
