"""What every report shares: a version, JSON both ways, a page, tables, a notebook view."""

from __future__ import annotations

import html
import importlib
import math
import os
import pkgutil
import sys
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_serializer

from quietformer.errors import QuietformerError
from quietformer.files import read_json, write_text
from quietformer.results.provenance import versions
from quietformer.results.tables import Table
from quietformer.results.upgrades import from_version_1

REPORT_VERSION = 2
"""Version of the JSON form; `upgrade` reads older ones."""
RENDERER = "quietformer.rendering.page"
"""The module that draws pages. By name, as registries name their homes: a report imports nothing that reads it."""


def finite_number(value: Any) -> Any:
    """None for NaN and infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


Number = Annotated[float | None, BeforeValidator(finite_number)]
"""A measured number; None stands for NaN and infinity, which JSON does not have: the model is broken there."""


class Record(BaseModel):
    """A typed part of a report. An optional field that was never set is left out of the JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_serializer(mode="wrap")
    def _without_unset(self, handler: Any) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        return {name: value for name, value in fields.items() if value is not None or name in self.model_fields_set}


class Report(Record):
    """The result of one verb."""

    kind: str
    version: int = REPORT_VERSION
    command: str = Field(default="", description="the command line that makes this report again")
    commit: str | None = Field(
        default=None, description="the commit of the source it was made with, where one was recorded"
    )
    versions: dict[str, str] = Field(default_factory=versions, description="packages it was made with")

    kinds: ClassVar[dict[str, type[Report]]] = {}

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        kind = cls.model_fields["kind"].default
        if isinstance(kind, str):
            cls.kinds[kind] = cls

    @classmethod
    def kind_name(cls) -> str:
        """The kind in the JSON; of a class that several kinds share, its own name."""
        kind = cls.model_fields["kind"].default
        return kind if isinstance(kind, str) else cls.__name__

    def to_json(self) -> str:
        return self.model_dump_json(indent=1) + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report as JSON; `read` gives it back."""
        write_text(Path(path), self.to_json())

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """A saved report, of this version or an older one."""
        path = Path(path)
        fields = read_json(path, f"{path} does not exist; give a report saved as JSON")
        try:
            return cls.from_fields(fields)
        except QuietformerError as error:
            raise QuietformerError(f"{path}: {error}") from None

    @classmethod
    def from_fields(cls, fields: Any) -> Self:
        """From parsed JSON; the class follows from the report's kind."""
        if not isinstance(fields, dict):
            raise QuietformerError(f"a report is a JSON object, got {type(fields).__name__}; make it again")
        upgraded = upgrade(fields)
        kind = upgraded.get("kind")
        _register_all()
        found = cls.kinds.get(kind) if isinstance(kind, str) else None
        if found is None:
            raise QuietformerError(f"no report of kind {kind!r}; known: {', '.join(sorted(cls.kinds))}")
        if not issubclass(found, cls):
            raise QuietformerError(f"a report of kind {kind!r}; one of kind {cls.kind_name()!r} is needed here")
        try:
            report = found.model_validate(upgraded)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise QuietformerError(
                f"a damaged report of kind {kind!r}: {place}: {first['msg']}; make it again"
            ) from None
        assert isinstance(report, cls)
        return report

    def sentences(self) -> list[str]:
        """What the report says, in words."""
        return []

    def tables(self) -> list[Table]:
        """What the report says, in tables; the main one first."""
        return []

    def footnotes(self) -> list[str]:
        """What stands below the tables: what columns mean, where numbers come from, what to type next."""
        return []

    @property
    def table(self) -> Table:
        return next(iter(self.tables()), Table(title=self.kind))

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write the report as one self-contained page."""
        write_text(Path(path), self._page())

    def _repr_html_(self) -> str:
        """In a notebook the page stands in a frame of its own: its styles touch nothing else."""
        return f'<iframe srcdoc="{html.escape(self._page())}" width="100%" height="720" style="border:0"></iframe>'

    def _page(self) -> str:
        text: str = importlib.import_module(RENDERER).page(self)
        return text

    def __str__(self) -> str:
        parts = ["\n".join(self.sentences()), *map(str, self.tables()), "\n".join(self.footnotes())]
        return "\n\n".join(filter(None, parts))


def _register_all() -> None:
    """Import every kind of report, so that a file can be read before anything else has used its kind."""
    for module in pkgutil.iter_modules(sys.modules[__package__].__path__):
        importlib.import_module(f"{__package__}.{module.name}")


def upgrade(fields: dict[str, Any]) -> dict[str, Any]:
    """A report's fields in today's form; what is newer than this version is refused."""
    version = fields.get("version", 1)
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise QuietformerError(f"the report has no usable version: {version!r}")
    if version > REPORT_VERSION:
        raise QuietformerError(
            f"the report has version {version}, this release reads up to {REPORT_VERSION}; pip install -U quietformer"
        )
    if version > 1:
        return fields
    try:
        return from_version_1(fields)
    except QuietformerError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        # An upgrade expects the shape that the earlier release wrote; a damaged file may have any other.
        raise QuietformerError(
            f"a damaged report: its fields are not those of version 1 ({type(error).__name__}: {error}); make it again"
        ) from None
