"""The report of `retrofit`: a model before and after it was healed."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from quietformer.results import numbers
from quietformer.results.base import Report
from quietformer.results.before_after import ComparisonRow, Side, mean_of
from quietformer.results.data import DataInfo
from quietformer.results.model import ModelInfo
from quietformer.results.quality import ByGranularity, Spreads, Yardstick
from quietformer.results.tables import Table
from quietformer.results.train import Best, LogLine


class RetrofitReport(Report, Yardstick):
    """A model before and after a retrofit; a model without outliers is left alone and has no `after`."""

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
        return [Table(title, ["", "before", "after"], rows)] if rows else []
