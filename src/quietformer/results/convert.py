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
        size = f"{numbers.mebibytes(self.bytes)} MiB in {self.out}"
        if self.plain:
            return [f"{self.class_name}, unchanged, with its weights in safetensors", f"{size}"]
        return [
            f"{self.class_name}: {self.layers} attention layers are now {self.attention.label}",
            f"{numbers.whole(before)} parameters, {change}; {size}",
            f'load it with quietformer.load("{self.out}")',
        ]

    @property
    def plain(self) -> bool:
        """Whether nothing of ours is in the model, so that only the format of its weights is another."""
        return self.layers == 0 and not self.patch_norm
