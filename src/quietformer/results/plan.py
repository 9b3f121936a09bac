"""The report of `train --plan`: what a run will take, before it is run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import Field

from quietformer.results import numbers
from quietformer.results.base import Record, Report
from quietformer.results.tables import Table


class Parameters(Record):
    """Each parameter once; tied ones count where they are embeddings."""

    total: int
    embeddings: int
    blocks: int
    head: int
    other: int = Field(description="between blocks and head")
    added: int = Field(description="added by Quietformer")


class PlannedModel(Record):
    class_name: str
    attention: str
    parameters: Parameters


class PlannedBatch(Record):
    """devices x micro_batch x accumulation = batch_size."""

    devices: int
    micro_batch: int
    accumulation: int
    batch_size: int


class Work(Record):
    """Of all devices together; totals are unset where nobody knows the size of the data."""

    unit: Literal["tokens", "images"]
    units_per_step: int
    steps: int | None
    units: int | None
    flops_per_step: int
    flops: int | None


class Memory(Record):
    """Bytes on one device."""

    total: int
    weights: int
    gradients: int
    optimizer: int = Field(description="optimizer states")
    activations: int
    gathered_block: int | None = Field(default=None, description="a block gathered whole")
    gradient_buckets: int | None = Field(default=None, description="buckets to exchange gradients")
    activations_per_example: int


class CopySeconds(Record):
    one_layer: float
    two_layers: float
    update: float


class PlannedTime(Record):
    """An estimate for devices like this one."""

    machine: str
    threads: int
    precision: str
    measured_micro_batch: int
    measured_seconds: CopySeconds
    flops_per_second: float
    seconds_per_step: float
    seconds: float | None


class PlanReport(Report):
    """Parameters, work, memory and time of a training run."""

    kind: Literal["plan"] = "plan"
    name: str
    model: PlannedModel
    batch: PlannedBatch
    work: Work
    memory: Memory
    time: PlannedTime | None
    notes: list[str]

    def sentences(self) -> list[str]:
        model, batch, work = self.model, self.batch, self.work
        unit = "images" if work.unit == "images" else "sequences"
        tokens = "" if unit == "images" else f", {numbers.count(work.units_per_step)} tokens"
        lines = [
            f"{self.name}  {model.class_name}, {numbers.count(model.parameters.total)} parameters, attention {model.attention}",
            f"A step: {batch.batch_size} {unit} ({batch.devices} device{'s' * (batch.devices > 1)} x {batch.micro_batch} at once "
            f"x {batch.accumulation} accumulated){tokens}, {numbers.flop(work.flops_per_step)}.",
        ]
        if work.steps is not None and work.units is not None and work.flops is not None:
            steps = numbers.counted(work.steps, "step")
            lines.append(f"The run: {steps}, {numbers.count(work.units)} {work.unit}, {numbers.flop(work.flops)}.")
        lines.append(f"One more in a micro batch adds {numbers.size(self.memory.activations_per_example)}.")
        return lines + self._time_in_words()

    def footnotes(self) -> list[str]:
        return self.notes

    def _time_in_words(self) -> list[str]:
        """The estimate, and what it is made from; nothing if no time was measured."""
        if (time := self.time) is None:
            return []
        threads = f", {numbers.counted(time.threads, 'thread')}" if "CPU" in time.machine else ""
        whole = "" if time.seconds is None else f", {numbers.duration(time.seconds)} for the run"
        return [
            f"Time, an estimate for this machine ({time.machine}{threads}, {time.precision}): "
            f"{numbers.duration(time.seconds_per_step)} a step{whole}.",
            f"From steps of copies with one and two layers at {time.measured_micro_batch} at once; "
            f"{numbers.flop(time.flops_per_second)} a second.",
        ]

    def tables(self) -> list[Table]:
        parameters, memory = self.model.parameters, self.memory
        return [
            _parts("Parameters", parameters, ("total",), numbers.count, parameters.total),
            _parts("Memory on a device", memory, ("total", "activations_per_example"), numbers.size, memory.total),
        ]


def _parts(title: str, record: Record, without: tuple[str, ...], shown: Callable[[float], str], total: int) -> Table:
    fields = type(record).model_fields
    rows = [
        [field.description or name, shown(value)]
        for name, field in fields.items()
        if name not in without and (value := getattr(record, name))
    ]
    return Table(title, ["part", "how much"], [*rows, ["total", shown(total)]])
