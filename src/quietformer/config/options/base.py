"""Options of a verb: a frozen object from which the command line and the Python signature are made."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ConfigDict
from pydantic.fields import FieldInfo

from quietformer.config.spec import Spec


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


@dataclass(frozen=True)
class Flag:
    """How the command line writes an option, where its field does not say: `Annotated[Path, Flag("FILE")]`."""

    metavar: str = ""
    name: str = ""  # `--set`; made from the field's name by default


def flag_of(name: str, field: FieldInfo) -> str:
    """`--batch-size` for `batch_size`, or what the field's `Flag` says."""
    named = next((item.name for item in field.metadata if isinstance(item, Flag) and item.name), "")
    return named or f"--{name.replace('_', '-')}"
