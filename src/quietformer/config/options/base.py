"""Options of a verb: a frozen object from which the command line and the Python signature are made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict
from pydantic.fields import FieldInfo

from quietformer.config.spec_base import Spec


class Options(Spec):
    """Options of one verb. A field is an option: its default, its limits and its description are what `--help` shows."""

    # Not strict: a path may be given as text.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, allow_inf_nan=False, validate_default=True)

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


def _as_overrides(value: Any) -> Any:
    """`KEY=VALUE` as it is typed; from Python also values by field."""
    if isinstance(value, Mapping):
        return tuple(f"{field}={one if isinstance(one, str) else json.dumps(one)}" for field, one in value.items())
    return value


@dataclass(frozen=True)
class Flag:
    """How the command line writes an option, where its field does not say: `Annotated[Path, Flag("FILE")]`."""

    metavar: str = ""
    name: str = ""  # `--set`; made from the field's name by default


def flag_of(name: str, field: FieldInfo) -> str:
    """`--batch-size` for `batch_size`, or what the field's `Flag` says."""
    named = next((item.name for item in field.metadata if isinstance(item, Flag) and item.name), "")
    return named or f"--{name.replace('_', '-')}"


Overrides = Annotated[tuple[str, ...], BeforeValidator(_as_overrides), Flag("KEY=VALUE")]
"""Changes to fields of a recipe: `training.steps=100`, several of them, or a mapping."""
