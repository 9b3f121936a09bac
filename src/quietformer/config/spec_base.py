"""Frozen, self-validating descriptions, with JSON both ways and one-line errors."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from quietformer.errors import SpecError

JsonObject = dict[str, JsonValue]
"""What JSON calls an object."""

Seed = Annotated[int, Field(ge=0, lt=2**32)]
"""A random seed; what NumPy takes, which is less than torch does."""

MOST = 10**9
"""Whole numbers of a spec that has no limit of its own."""

LISTED = 24
"""So many choices are named where none is near; more would not be read."""


class Spec(BaseModel):
    """A frozen, keyword-only, self-validating description; unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True)
    kind: ClassVar[str] = ""
    title: ClassVar[str] = ""
    """What an error calls a spec that has no kind; the class's name by default."""

    @model_validator(mode="after")
    def _sane_numbers(self) -> Self:
        """No count of anything is larger, and what follows from one is to fit into memory and into 64 bits."""
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            own = any(hasattr(item, "le") or hasattr(item, "lt") for item in field.metadata)
            if isinstance(value, int) and not own and abs(value) > MOST:
                raise ValueError(f"{name} must be <= {MOST}, got {_short(value)}")
        return self

    def __init__(self, /, *values: Any, **fields: Any) -> None:
        if values:
            example = next(iter(type(self).model_fields), "field")
            raise SpecError(f"{type(self).__name__} takes its fields by name: {type(self).__name__}({example}=...)")
        try:
            super().__init__(**fields)
        except ValidationError as error:
            # from None: pydantic's page of text says nothing that the one line does not.
            raise SpecError(_one_line(type(self), error)) from None

    def to_dict(self) -> JsonObject:
        """The JSON form, nested specs carrying their registered names."""
        plain = {name: _plain(getattr(self, name)) for name in type(self).model_fields}
        return {"kind": self.kind, **plain} if self.kind else plain

    def __str__(self) -> str:
        """The form the command line takes: `clipped_softmax(alpha=4.0)`, defaults left out."""
        fields = type(self).model_fields.items()
        given = [(name, getattr(self, name)) for name, field in fields if getattr(self, name) != field.default]
        return f"{self.kind or type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in given)})"


def listed(value: Any) -> Any:
    """A file has lists where a spec has tuples."""
    return tuple(value) if isinstance(value, list) else value


S = TypeVar("S", bound=Spec)


def nested(cls: type[S], value: Any) -> S | None:
    if value is None or isinstance(value, cls):
        return value
    if isinstance(value, Mapping):
        return cls(**{str(key): item for key, item in value.items()})
    raise SpecError(f"{cls.__name__} must be a mapping, got {_short(value)}")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.to_dict() if isinstance(value, Spec) else value


def _short(value: Any, limit: int = 60) -> str:
    """A value in an error, cut where nobody would read on."""
    try:
        text = repr(value)
    except ValueError:  # more digits than Python writes out
        text = f"a number of {value.bit_length()} bits"
    return text if len(text) <= limit else f"{text[:limit]}..."


def nearest(name: str, choices: Iterable[str]) -> str:
    names = sorted(choices)
    if not names:
        return "; it has none"
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; choose from {', '.join(names[:LISTED])}{', ...' if len(names) > LISTED else ''}"


def _allowed(annotation: Any) -> str:
    choices = [str(choice) for choice in get_args(annotation) if isinstance(choice, str)]
    return f"; choose from {', '.join(choices)}" if choices else ""


_RELATIONS = {
    "greater_than": (">", "gt"),
    "greater_than_equal": (">=", "ge"),
    "less_than": ("<", "lt"),
    "less_than_equal": ("<=", "le"),
}


def _number(limit: float) -> str:
    return str(limit) if isinstance(limit, int) else f"{limit:g}"


def _one_line(cls: type[Spec], error: ValidationError) -> str:
    """`clipped_softmax: gamma must be <= 0, got 0.1`: the field, the value and what would be right."""
    name = cls.kind or cls.title or cls.__name__
    first = error.errors()[0]
    field = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "extra_forbidden":
        return f"{name} has no field {field!r}{nearest(field, cls.model_fields)}"
    if first["type"] == "missing":
        return f"{name}: {field} is missing{_allowed(cls.model_fields[field].annotation)}"
    if first["type"] in _RELATIONS:
        sign, key = _RELATIONS[first["type"]]
        return f"{name}: {field} must be {sign} {_number(first['ctx'][key])}, got {_short(first['input'])}"
    message = first["msg"].removeprefix("Value error, ")
    if isinstance(cause := first.get("ctx", {}).get("error"), SpecError) and (field or not cls.kind):
        return str(cause)  # a nested spec has already named itself
    return (
        f"{name}: {field + ': ' if field else ''}{message}, got {_short(first['input'])}"
        if field
        else f"{name}: {message}"
    )
