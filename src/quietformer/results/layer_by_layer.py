"""The reports of an export layer by layer: what it did, and before that what it would take."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from quietformer.results import numbers
from quietformer.results.base import Record, Report
from quietformer.results.model import ModelInfo
from quietformer.results.quality import Metrics
from quietformer.results.quantize import SimulatedReport
from quietformer.results.tables import Table


class Smoothing(Record):
    """Which inputs of linear layers were smoothed; others have nothing before them that takes the division over."""

    groups: int
    left: int
    exponents: list[float]


class LayerByLayerCost(Record):
    """What the export took; memory is unset where the system does not tell."""

    seconds: float
    seconds_by_step: dict[str, float]
    weights_read: int = Field(description="bytes of the original weights")
    weights_written: int = Field(description="bytes")
    peak_memory: int | None = Field(description="most bytes in memory at once, mapped files and libraries included")


class LayerByLayerReport(SimulatedReport):
    """INT8 of a model that was never in memory as a whole."""

    kind: Literal["layer_by_layer"] = "layer_by_layer"
    blocks: int
    integer_layers: int
    devices: list[str]
    smoothing: Smoothing | None
    cost: LayerByLayerCost

    def sentences(self) -> list[str]:
        cost = self.cost
        lines = [
            self.model.title,
            f"{numbers.counted(self.integer_layers, 'linear layer')} written as INT8, one block of {self.blocks} after the other",
            self.in_words(),
        ]
        if (smoothing := self.smoothing) is not None and smoothing.exponents:
            spread = numbers.span(min(smoothing.exponents), max(smoothing.exponents))
            lines.append(
                f"Smoothed: {numbers.counted(smoothing.groups, 'group')} of linear layers, exponents {spread}."
            )
        peak = "" if cost.peak_memory is None else f", at most {numbers.size(cost.peak_memory)} of memory"
        return [
            *lines,
            f"{numbers.size(cost.weights_read)} of weights became {numbers.size(cost.weights_written)} in "
            f"{numbers.duration(cost.seconds)}{peak}.",
        ]

    def tables(self) -> list[Table]:
        rows = [
            [name, _shown(self.fp32, name), _shown(self.runs[0].metrics, name)] for name in self.runs[0].metrics.names()
        ]
        seconds = [[name, numbers.duration(value)] for name, value in self.cost.seconds_by_step.items()]
        return [Table("Metrics", ["metric", "fp32", self.spec.label], rows), Table("Time", ["step", "time"], seconds)]


def _shown(metrics: Metrics, name: str) -> str:
    return numbers.metric(metrics[name], name) if name in metrics.names() else ""


class PlannedMemory(Record):
    """Bytes; the peak is measured on the first block, but for what is after the blocks, which is computed from sizes."""

    peak: int = Field(description="most in memory at once")
    libraries: int = Field(description="Python and the libraries")
    largest_part: int = Field(description="weights of the largest part: one block, or all that is outside of blocks")
    logits: int = Field(description="outputs of one batch")
    free: int = Field(description="free at the moment")


class LayerByLayerPlanReport(Report):
    """Memory, disk space and time of an export layer by layer, from a trial on the first block."""

    kind: Literal["layer_by_layer_plan"] = "layer_by_layer_plan"
    model: ModelInfo
    blocks: int
    weights: int = Field(description="bytes of all weights")
    memory: PlannedMemory
    disk: int = Field(description="bytes to write, hidden states included")
    disk_free: int
    seconds: float

    @property
    def whole(self) -> bool:
        """Whether the model could as well be exported as a whole."""
        return fits(self.weights, self.memory.free)

    def sentences(self) -> list[str]:
        memory = self.memory
        return [
            f"{self.model.title}, {numbers.size(self.weights)} of weights in {numbers.counted(self.blocks, 'block')}",
            f"Memory: at most {numbers.size(memory.peak)} at once; {numbers.size(memory.free)} are free. "
            f"As a whole the model would {'fit' if self.whole else 'not fit'}.",
            f"Disk: {numbers.size(self.disk)}; {numbers.size(self.disk_free)} are free.",
            f"Time, an estimate for this machine from one block and one batch: {numbers.duration(self.seconds)}.",
        ]

    def tables(self) -> list[Table]:
        rows = [
            [field.description or name, numbers.size(getattr(self.memory, name))]
            for name, field in PlannedMemory.model_fields.items()
        ]
        return [Table("Memory", ["part", "how much"], rows)]


COPIES = 2
"""How many times the weights are in memory when a model is exported as a whole: as they are, and quantized."""


def fits(weights: int, free: int) -> bool:
    """Whether a model with so many bytes of weights can be exported as a whole with so much free memory."""
    return COPIES * weights <= free
