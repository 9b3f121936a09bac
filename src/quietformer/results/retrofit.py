"""The report of `retrofit`: a model before and after it was healed."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from quietformer.config.quantization import placements
from quietformer.results import numbers
from quietformer.results.base import Record, Report
from quietformer.results.before_after import ComparisonRow, Side, mean_of
from quietformer.results.data import DataInfo
from quietformer.results.export import ExportFacts, FileSizes, SearchStep
from quietformer.results.model import ModelInfo
from quietformer.results.quality import ByGranularity, Metrics, Spreads, Yardstick
from quietformer.results.tables import Table
from quietformer.results.train import Best, LogLine


class TrainingFree(Record):
    """INT8 of the original that the search found without training."""

    placement: str
    metrics: Metrics
    real: bool = Field(description="whether the metrics are of real INT8 (ONNX Runtime), or simulated")
    steps: list[SearchStep] = Field(default_factory=list)
    facts: ExportFacts = Field(default_factory=ExportFacts)

    @property
    def everywhere(self) -> bool:
        """Whether every tensor is in INT8."""
        return placements.read(self.placement).everywhere

    @property
    def what(self) -> str:
        return f"INT8 without training ({self.placement} placement, search)"


def is_better(one: TrainingFree, other: TrainingFree, yardstick: Yardstick) -> bool:
    """Whether the first keeps more of the original's quality; a model that gives no number keeps nothing."""
    values = [found.metrics[yardstick.primary] for found in (one, other)]
    if None in values:
        return values[0] is not None
    return values[0] > values[1] if yardstick.better == "higher" else values[0] < values[1]  # type: ignore[operator]


def no_training_needed(free: TrainingFree, before: Side, metric: str) -> str:
    """Why nothing was trained, and what to ask for if training is wanted."""
    kind = "real INT8" if free.real else "simulated INT8"
    plain, which = before.int8(metric)
    return (
        f"Training would add next to nothing: without it, {kind} at the inputs of matrix products has {metric} "
        f"{numbers.metric(free.metrics[metric], metric)}. With every tensor in INT8, {which} has {metric} "
        f"{numbers.metric(plain, metric)}. To train all the same: --placement paper for hardware that needs every tensor in "
        "INT8, or --force."
    )


def beside_training(free: TrainingFree, healed: TrainingFree, yardstick: Yardstick) -> str:
    """What training brought to the best INT8 without it, and which of the two is in the folder."""
    metric = yardstick.primary
    values = [numbers.metric(found.metrics[metric], metric) for found in (free, healed)]
    better = is_better(healed, free, yardstick)
    nothing = "" if better else "Training adds nothing: "
    tensors = "every tensor" if free.everywhere else "matrix products"
    return (
        f"{nothing}INT8 of {tensors} has {metric} {values[0]} without training and {values[1]} after it; that of the "
        f"{'healed model' if better else 'original'} is shipped."
    )


class RetrofitReport(Report, Yardstick):
    """A model before and after a retrofit; a model that needs no training has no `after`."""

    kind: Literal["retrofit"] = "retrofit"
    changed: bool
    sentence: str
    model: ModelInfo
    before: Side
    after: Side | None = None
    rows: list[ComparisonRow] = Field(default_factory=list, description="both sides, line by line")
    balanced_alone: ByGranularity[Spreads] | None = Field(
        default=None, description="simulated INT8 after channel balancing, without training"
    )
    training_free: TrainingFree | None = Field(
        default=None, description="INT8 without training; None for models without outliers"
    )
    healed_int8: TrainingFree | None = Field(
        default=None, description="the same search on the healed model; None if nothing was trained"
    )
    data: DataInfo
    attention: str = ""
    steps: int = 0
    minutes: float = 0.0
    seed: int = 0
    best: Best | None = Field(default=None, description="the evaluation whose checkpoint is kept")
    parameters_added: int = 0
    recipe: dict[str, JsonValue] = Field(default_factory=dict, description="the resolved recipe")
    asked: dict[str, JsonValue] = Field(default_factory=dict, description="the model and the options")
    log: list[LogLine] = Field(default_factory=list)

    @property
    def balance(self) -> float:
        """Alpha of the channel balancing that came first; 0 if there was none."""
        model = self.recipe.get("model")
        alpha = model.get("balance") if isinstance(model, dict) else None
        return float(alpha) if isinstance(alpha, int | float) else 0.0

    def sentences(self) -> list[str]:
        if self.after is None and self.training_free is not None:
            return [self.sentence]
        if self.after is None:
            return [self.sentence, *(f"  {claim}" for claim in self.before.inspect.verdict.claims)]
        lines = [self.sentence]
        if self.balance:
            lines.append(
                "Channels were balanced first: FFN outputs are on the scale they are quantized in, their gains inside the norms."
            )
        if (alone := self.balanced_alone) is not None:
            values = [
                f"{numbers.metric(mean_of(found, self.primary), self.primary)} {name}" for name, found in alone.items()
            ]
            lines.append(f"Balanced and not trained, simulated W8A8: {self.primary} {', '.join(values)}.")
        if self.after.real.error:
            lines.append(f"Real INT8 was not written: {self.after.real.error}")
        if self.best is not None:
            lines.append(f"Kept: step {self.best.step} of {self.steps}, the best in simulated INT8 during training.")
        return lines

    def tables(self) -> list[Table]:
        steps, minutes = numbers.counted(self.steps, "step"), numbers.one_place(self.minutes)
        title = f"{self.model.name}, {self.attention}, {steps}, {minutes} minutes"
        rows = [row.cells() for row in self.rows]
        compared = [Table(title, ["", "before", "after"], rows)] if rows else []
        return [*self._training_free_tables(), *compared]

    def _training_free_tables(self) -> list[Table]:
        """The original in fp32 and in every INT8 of it; nothing for a model that is left alone."""
        free = self.training_free
        if free is None:
            return []
        before, names = self.before, self.before.fp32.names()
        real = before.real
        found: list[tuple[str, Metrics, FileSizes | None]] = [
            ("fp32", before.fp32, None),
            ("INT8 of every tensor, per-tensor weights", real.per_tensor, None),
            ("INT8 of every tensor, per-channel weights", real.per_channel, real.bytes),
            (free.what, free.metrics, free.facts.bytes),
        ]
        if self.healed_int8 is not None:
            found.append(("the same after training", self.healed_int8.metrics, self.healed_int8.facts.bytes))
        rows = [
            [
                what,
                *(
                    numbers.metric(metrics[name], name) if name in metrics.names() else numbers.MISSING
                    for name in names
                ),
                numbers.MISSING if size is None else numbers.megabytes(size.int8),
            ]
            for what, metrics, size in found
        ]
        return [Table(f"{self.model.name} in INT8", ["", *names, "MB"], rows)]
