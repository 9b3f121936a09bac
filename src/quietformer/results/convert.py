"""The report of `convert`: a model with another attention."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, PlainSerializer

from quietformer.config.attention import AttentionSpec
from quietformer.config.spec_base import nested
from quietformer.results.base import Report

AttentionSpecField = Annotated[
    AttentionSpec,
    BeforeValidator(lambda value: nested(AttentionSpec, value)),
    PlainSerializer(lambda spec: spec.to_dict(), return_type=dict),
]


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
        change = f"{abs(added):,} {'added' if added >= 0 else 'removed'} ({abs(added) / before:.3%})"
        return [
            f"{self.class_name}: {self.layers} attention layers are now {self.attention.label}",
            f"{before:,} parameters, {change}; {self.bytes / 2**20:.1f} MiB in {self.out}",
            f'load it with quietformer.load("{self.out}")',
        ]
