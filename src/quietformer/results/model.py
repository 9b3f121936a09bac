"""The model a result is about."""

from __future__ import annotations

from quietformer.results import numbers
from quietformer.results.base import Record


class ModelInfo(Record):
    """Name, class and size; what only an inspection finds out is unset elsewhere."""

    name: str
    class_name: str
    parameters: int
    attention: str | None = None
    type: str | None = None
    layers: int | None = None
    heads: int | None = None
    width: int | None = None
    attention_seen: bool | None = None
    post_norm: bool | None = None

    @property
    def title(self) -> str:
        return f"{self.name}  {self.class_name}, {numbers.millions(self.parameters)} parameters"
