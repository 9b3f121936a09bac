"""Options of a verb: a frozen object from which the command line and the Python signature are made."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from quietformer.config.spec_base import Spec
from quietformer.errors import SpecError


class Options(Spec):
    """Options of one verb. A field is an option: its default, its limits and its description are what `--help` shows."""

    def words(self) -> list[str]:
        """The options that differ from their defaults, as they are typed on the command line."""
        found: list[str] = []
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if value == field.get_default(call_default_factory=True):
                continue
            flag = flag_of(name, field)
            if isinstance(value, bool):
                found.append(flag if value else f"--no-{flag.removeprefix('--')}")
            else:
                for one in value if isinstance(value, tuple) else (value,):
                    found += [flag, str(one)]
        return found


@dataclass(frozen=True)
class Flag:
    """How the command line writes an option, where its field does not say: `Annotated[Path, Flag("FILE")]`."""

    metavar: str = ""
    name: str = ""  # `--set`; made from the field's name by default


def flag_of(name: str, field: FieldInfo) -> str:
    """`--batch-size` for `batch_size`, or what the field's `Flag` says."""
    named = next((item.name for item in field.metadata if isinstance(item, Flag) and item.name), "")
    return named or f"--{name.replace('_', '-')}"


# ---- what an option takes, and what it keeps
def _path(value: Any) -> Any:
    """A path from text; other things are left for the field to refuse."""
    return Path(value) if isinstance(value, str | os.PathLike) else value


def _several(value: Any) -> Any:
    """A tuple of texts, from one text or path or a sequence of them."""
    given = [value] if isinstance(value, str | os.PathLike) else value
    if not isinstance(given, list | tuple) or not all(isinstance(one, str | os.PathLike) for one in given):
        raise SpecError(f"give a text or a path, or a list of them, got {value!r}")
    return tuple(map(os.fspath, given))


def _several_paths(value: Any) -> Any:
    return tuple(map(Path, _several(value)))


def _names(value: Any) -> Any:
    """Names from a sequence, or from text with commas, given once or several times."""
    given = _several(value)
    parts = [part.strip() for text in given for part in text.split(",")]
    if not all(parts):
        raise SpecError(f"cannot read {','.join(given)!r}; write names with commas between them, e.g. a,b")
    return tuple(parts)


def _overrides(value: Any) -> Any:
    """`KEY=VALUE` as it is typed; from Python also values by field."""
    return (
        tuple(f"{field}={_override(field, one)}" for field, one in value.items())
        if isinstance(value, Mapping)
        else _several(value)
    )


def _override(field: object, value: Any) -> str:
    """A value as it is typed: text and paths as they are, everything else as JSON, which is YAML too."""
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    try:
        return json.dumps(value, default=_spec_fields)
    except (TypeError, ValueError):
        raise SpecError(f"{field} takes a number, text, list, mapping or spec, got {value!r}") from None


def _spec_fields(value: Any) -> Any:
    if isinstance(value, Spec):
        return value.to_dict()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError


Place = str | os.PathLike[str]
"""A path as it is given."""

if TYPE_CHECKING:
    Given = TypeVar("Given", contravariant=True)
    Kept = TypeVar("Kept", covariant=True)

    class Takes(Generic[Given, Kept]):
        """A field as a type checker sees it: it takes one type, and its validator keeps another."""

        def __get__(self, instance: object, owner: type) -> Kept: ...

        def __set__(self, instance: object, value: Given) -> None: ...

    OptionalPath = Takes[Place | None, Path | None]
    Paths = Takes[Place | Sequence[Place], tuple[Path, ...]]
    Texts = Takes[Place | Sequence[Place], tuple[str, ...]]
    Names = Takes[str | Sequence[str], tuple[str, ...]]
    Overrides = Takes[str | Sequence[str] | Mapping[str, object], tuple[str, ...]]
    Limits = Takes[str | Sequence[str] | Mapping[str, float], tuple[str, ...]]
else:
    OptionalPath = Annotated[Path | None, BeforeValidator(_path)]
    Paths = Annotated[tuple[Path, ...], BeforeValidator(_several_paths)]
    Texts = Annotated[tuple[str, ...], BeforeValidator(_several)]
    Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
    """With commas between them: `a,b`."""
    Overrides = Annotated[tuple[str, ...], BeforeValidator(_overrides), Flag("KEY=VALUE")]
    """Changes to fields of a recipe: `training.steps=100`, several of them, or a mapping."""
    Limits = Annotated[tuple[str, ...], BeforeValidator(_overrides), Flag("METRIC=VALUE")]
    """Limits of quality: `cosine=0.998`, several of them, or a mapping."""
