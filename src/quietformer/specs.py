"""Frozen descriptions of things, the registries that name them, and the only way to and from JSON."""

from __future__ import annotations

import ast
import difflib
import importlib
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from quietformer.errors import SpecError

if TYPE_CHECKING:
    from torch import nn

    from quietformer.attention.gates import Gate
    from quietformer.attention.normalizer import Normalizer
    from quietformer.quant.estimators.base import RangeEstimator
    from quietformer.train.regularizers import Regularizer

LISTED = 24
"""So many choices are named where none is near; more would not be read."""


class Spec(BaseModel):
    """A frozen, keyword-only, self-validating description; unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True)
    kind: ClassVar[str] = ""
    title: ClassVar[str] = ""
    """What an error calls a spec that has no kind; the class's name by default."""

    def __init__(self, /, *values: Any, **fields: Any) -> None:
        if values:
            example = next(iter(type(self).model_fields), "field")
            raise SpecError(f"{type(self).__name__} takes its fields by name: {type(self).__name__}({example}=...)")
        try:
            super().__init__(**fields)
        except ValidationError as error:
            # from None: pydantic's page of text says nothing that the one line does not.
            raise SpecError(_one_line(type(self), error)) from None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, nested specs carrying their registered names."""
        plain = {name: _plain(getattr(self, name)) for name in type(self).model_fields}
        return {"kind": self.kind, **plain} if self.kind else plain

    def __str__(self) -> str:
        """The form the command line takes: `clipped_softmax(alpha=4.0)`, defaults left out."""
        fields = type(self).model_fields.items()
        given = [(name, getattr(self, name)) for name, field in fields if getattr(self, name) != field.default]
        return f"{self.kind or type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in given)})"


@dataclass(frozen=True)
class HeadGeometry:
    """The sizes a normalizer or gate needs to be built for one attention layer."""

    n_heads: int
    d_model: int  # width of the layer's input, which gates read
    d_value: int | None  # width of one head's output; None where it cannot be told before the first call

    def features_per_head(self, what: str) -> int:
        """The input reshaped to heads has d_model / n_heads features each."""
        if self.d_model % self.n_heads:
            raise SpecError(
                f"{what} reads the input by heads, but d_model {self.d_model} is not a multiple of "
                f"{self.n_heads} heads; use the all_heads gate"
            )
        return self.d_model // self.n_heads


class NormalizerSpec(Spec):
    """What turns a row of attention scores into weights."""

    @abstractmethod
    def build(self, geometry: HeadGeometry) -> Normalizer:
        """A module taking (scores_BHQK, visible or None) to weights_BHQK, in float32 or wider."""


class GateSpec(Spec):
    """What scales a head's output by a learned function of the layer's input."""

    @abstractmethod
    def build(self, geometry: HeadGeometry) -> Gate:
        """A module taking inputs_BQd to gates_BQH1 or gates_BQHD, in float32 or wider."""


class EstimatorSpec(Spec):
    """What chooses the range of a quantizer from the values that pass it."""

    @abstractmethod
    def build(self, *, bits: int, symmetric: bool, axis: int | None = None) -> RangeEstimator:
        """A stream that takes tensors in and gives a range, one a channel of `axis` if there is one."""


class RegularizerSpec(Spec):
    """A term added to the training loss."""

    @abstractmethod
    def build(self, model: nn.Module) -> Regularizer:
        """A regularizer attached to this model."""


S = TypeVar("S", bound=Spec)


class Registry(Generic[S]):
    """Names for the classes of one kind; registering is what makes the CLI, JSON and tests know a class."""

    def __init__(self, what: str, home: str) -> None:
        self.what = what
        self._home = home
        self._registered: dict[str, type[S]] = {}

    @property
    def _classes(self) -> dict[str, type[S]]:
        """The package that holds the classes is imported by the first question, not before."""
        importlib.import_module(self._home)
        return self._registered

    def register(self, name: str) -> Callable[[type[S]], type[S]]:
        def add(cls: type[S]) -> type[S]:
            if name in self._registered:
                raise ValueError(f"{self.what} {name!r} is registered twice")
            cls.kind = name
            self._registered[name] = cls
            return cls

        return add

    def __getitem__(self, name: str) -> type[S]:
        if name not in self._classes:
            for other in (normalizers, gates, estimators, regularizers):
                if other is not self and name in other._registered:
                    raise SpecError(f"{name!r} is a {other.what}, not a {self.what}")
            raise SpecError(f"unknown {self.what} {name!r}{nearest(name, self._classes)}")
        return self._classes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._classes))

    def read(self, value: Any) -> S:
        """A spec from a spec, its JSON form, or its text form."""
        if isinstance(value, Spec):
            if value.kind not in self._classes or type(value) is not self._classes[value.kind]:
                raise SpecError(f"{type(value).__name__} is not a {self.what}")
            return value
        if isinstance(value, str):
            return self.parse(value)
        if isinstance(value, Mapping):
            fields = dict(value)
            if not isinstance(kind := fields.pop("kind", None), str):
                raise SpecError(f"a {self.what} needs a 'kind': one of {', '.join(self)}")
            return self[kind](**fields)
        raise SpecError(f"a {self.what} is a spec, a mapping or text like 'name(field=value)', got {value!r}")

    def parse(self, text: str) -> S:
        """`clipped_softmax(alpha=4)` or just `softmax`; values are Python literals, nothing is evaluated."""
        try:
            node = ast.parse(text.strip(), mode="eval").body
            call = node if isinstance(node, ast.Call) else ast.Call(func=node, args=[], keywords=[])
            if not isinstance(call.func, ast.Name) or call.args or any(word.arg is None for word in call.keywords):
                raise ValueError
            fields = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
            if len(fields) != len(call.keywords):
                raise ValueError("a field twice")
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            raise SpecError(
                f"cannot read {self.what} {text!r}; write name(field=value), e.g. '{self._example()}'"
            ) from None
        return self[call.func.id](**fields)

    def _example(self) -> str:
        name = next(iter(self))
        return f"{name}({', '.join(f'{field}=...' for field in list(self[name].model_fields)[:1])})"


normalizers: Registry[NormalizerSpec] = Registry("normalizer", home="quietformer.attention")
gates: Registry[GateSpec] = Registry("gate", home="quietformer.attention")
estimators: Registry[EstimatorSpec] = Registry("range estimator", home="quietformer.quant")
regularizers: Registry[RegularizerSpec] = Registry("regularizer", home="quietformer.train.regularizers")


def _default_normalizer() -> NormalizerSpec:
    return normalizers["softmax"]()


class AttentionSpec(Spec):
    """The two slots of an attention layer: how scores become weights, and what gates the result."""

    normalizer: Annotated[NormalizerSpec, BeforeValidator(normalizers.read)] = Field(
        default_factory=_default_normalizer
    )
    gate: Annotated[GateSpec | None, BeforeValidator(lambda value: None if value is None else gates.read(value))] = None

    @property
    def label(self) -> str:
        """A name for tables and pages."""
        return f"{self.normalizer}" if self.gate is None else f"{self.normalizer} + {self.gate}"


class PatchNormSpec(Spec):
    """LayerNorm after the patch embedding of a vision transformer."""

    eps: float = Field(default=1e-6, gt=0)


class QuantRule(Spec):
    """Sites whose name or short name matches the pattern get other bits, or none at all."""

    pattern: str = Field(min_length=1, description="shell pattern over site names, e.g. '*.ffn_output'")
    bits: int | None = Field(default=None, ge=2, le=16, description="None leaves the site in floating point")

    @classmethod
    def parse(cls, text: str) -> QuantRule:
        """`*.ffn_output` leaves it in floating point, `*.ffn_output=16` takes 16 bits."""
        pattern, sign, bits = text.rpartition("=")
        if not sign:
            return cls(pattern=text)
        if not bits.isascii() or not bits.isdigit():
            raise SpecError(f"cannot read rule {text!r}; write PATTERN or PATTERN=BITS, e.g. '*.ffn_output=16'")
        return cls(pattern=pattern, bits=int(bits))

    def __str__(self) -> str:
        return self.pattern if self.bits is None else f"{self.pattern}={self.bits}"


def _rules(value: Any) -> Any:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise SpecError(f"rules must be a list, got {value!r}")
    return tuple(rule if isinstance(rule, QuantRule) else QuantRule.parse(rule) for rule in value)


def _estimator(name: str) -> Callable[[], EstimatorSpec]:
    return lambda: estimators[name]()


class QuantSpec(Spec):
    """How a model is quantized: the paper's W8A8 by default, everything but the head and the gates."""

    weight_bits: int = Field(default=8, ge=2, le=16)
    activation_bits: int = Field(default=8, ge=2, le=16)
    weights: Annotated[EstimatorSpec, BeforeValidator(lambda value: estimators.read(value))] = Field(
        default_factory=_estimator("minmax"), description="range estimator of weights"
    )
    activations: Annotated[EstimatorSpec, BeforeValidator(lambda value: estimators.read(value))] = Field(
        default_factory=_estimator("running_minmax"), description="range estimator of activations"
    )
    per_channel: bool = Field(default=False, description="one scale for each output channel of a weight")
    weight_symmetric: bool = True
    activation_symmetric: bool = False
    head: bool = Field(default=False, description="also quantize the head")
    gate: bool = Field(default=False, description="also quantize what a gate gives")
    rules: Annotated[tuple[QuantRule, ...], BeforeValidator(_rules)] = Field(
        default=(), description="exceptions by pattern; the last that matches counts"
    )

    @property
    def label(self) -> str:
        """`W8A8`, as papers write it."""
        return f"W{self.weight_bits}A{self.activation_bits}" + (" with exceptions" if self.rules else "")

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"rules": [str(rule) for rule in self.rules]}


def parse_bits(text: str) -> tuple[int, int]:
    """Bits of weights and of activations from `w8a8`."""
    match = re.fullmatch(r"w([0-9]{1,2})a([0-9]{1,2})", text, re.IGNORECASE)
    if match is None:
        raise SpecError(f"bits are written like w8a8 or w4a8, got {text!r}")
    return int(match[1]), int(match[2])


class QuantizedSpec(Spec):
    """A quantized model: how it was asked for, and every site with its grid (`u8`, `s8`, `s8@0`)."""

    spec: Annotated[QuantSpec, BeforeValidator(lambda value: nested(QuantSpec, value))]
    sites: dict[str, str]


def nested(cls: type[S], value: Any) -> S | None:
    if value is None or isinstance(value, cls):
        return value
    if isinstance(value, Mapping):
        return cls(**{str(key): item for key, item in value.items()})
    raise SpecError(f"{cls.__name__} must be a mapping, got {value!r}")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.to_dict() if isinstance(value, Spec) else value


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
        return f"{name}: {field} must be {sign} {first['ctx'][key]:g}, got {first['input']!r}"
    message = first["msg"].removeprefix("Value error, ")
    if isinstance(cause := first.get("ctx", {}).get("error"), SpecError) and (field or not cls.kind):
        return str(cause)  # a nested spec has already named itself
    return (
        f"{name}: {field + ': ' if field else ''}{message}, got {first['input']!r}" if field else f"{name}: {message}"
    )
