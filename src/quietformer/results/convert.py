"""The report of `convert`: a model with another attention."""

from __future__ import annotations

from typing import Literal

from quietformer.results import numbers
from quietformer.results.base import Report
from quietformer.results.spec_serialization import AttentionSpecField


class ConvertReport(Report):
    """What was changed, and what it added."""

    kind: Literal["convert"] = "convert"
    model: str
    out: str
    class_name: str
    attention: AttentionSpecField
    patch_norm: bool
    seed: int
    layers: int
    parameters_before: int
    parameters_added: int
    bytes: int

    def sentences(self) -> list[str]:
        added, before = self.parameters_added, self.parameters_before
        share = numbers.percent(abs(added) / before, 3)
        change = f"{numbers.whole(abs(added))} {'added' if added >= 0 else 'removed'} ({share})"
        return [
            f"{self.class_name}: {self.layers} attention layers are now {self.attention.label}",
            f"{numbers.whole(before)} parameters, {change}; {numbers.mebibytes(self.bytes)} MiB in {self.out}",
            f'load it with quietformer.load("{self.out}")',
        ]
