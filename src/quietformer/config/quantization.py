"""How a model is quantized: bits, range estimators, exceptions."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from quietformer.config.registry import Registry
from quietformer.config.spec_base import JsonObject, Spec, nested
from quietformer.errors import SpecError


class EstimatorSpec(Spec):
    """What chooses the range of a quantizer from the values that pass it."""

    @abstractmethod
    def build(self, *, bits: int, symmetric: bool, axis: int | None = None) -> Any:
        """A `RangeEstimator`: a stream that takes tensors in and gives a range, one a channel of `axis` if there is one."""


KVCache = Literal["tensor", "token", "channel"]
"""What shares a scale in a key/value cache; a channel is a feature of a head."""

estimators: Registry[EstimatorSpec] = Registry("range estimator", home="quietformer.quant.estimators")


class PlacementSpec(Spec):
    """Which tensors of a model are quantized."""

    attention: ClassVar[tuple[str, ...]]
    """Tensors inside attention that are quantized: query, key, value, scores, probabilities, context."""
    everywhere: ClassVar[bool]
    """Whether every result is quantized, or only what linear layers read."""


Granularity = Literal["tensor", "token"]
"""What shares a scale: a whole activation, found in calibration, or each token, found while the model runs."""

placements: Registry[PlacementSpec] = Registry("placement", home="quietformer.quant.placements")


class QuantRule(Spec):
    """Sites whose name or short name matches the pattern get other bits, or none at all."""

    pattern: str = Field(min_length=1, description="shell pattern over site names, e.g. '*.ffn_output'")
    bits: int | None = Field(default=None, ge=2, le=16, description="None keeps the tensor in full precision")

    @classmethod
    def parse(cls, text: str) -> QuantRule:
        """`*.ffn_output` keeps it in full precision, `*.ffn_output=16` gives it 16 bits."""
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

    placement: Annotated[PlacementSpec, BeforeValidator(lambda value: placements.read(value))] = Field(
        default_factory=lambda: placements["paper"](), description="which tensors are quantized: paper, matmul, linear"
    )
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
    granularity: Granularity = Field(
        default="tensor", description="scales of activations: one per tensor, calibrated, or one per token at run time"
    )
    per_pass: bool = Field(
        default=False, description="where layers share a module (ALBERT), one static range for each call of it"
    )
    kv_cache: KVCache | None = Field(
        default=None,
        description="quantize keys and values as a cache holds them: one scale per tensor, per token and head, or per channel",
    )
    head: bool = Field(default=False, description="also quantize the head")
    gate: bool = Field(default=False, description="also quantize what a gate gives")
    rules: Annotated[tuple[QuantRule, ...], BeforeValidator(_rules)] = Field(
        default=(), description="exceptions by pattern; the last that matches counts"
    )

    @property
    def label(self) -> str:
        """`W8A8`, as papers write it, and what is unusual about it."""
        way = " per token" if self.granularity == "token" else " symmetric" if self.activation_symmetric else ""
        if self.kv_cache is not None:
            way += f", key/value cache per {self.kv_cache}"
        return f"W{self.weight_bits}A{self.activation_bits}{way}" + (" with exceptions" if self.rules else "")

    @property
    def needs_format_5(self) -> bool:
        """Whether releases before format 5 of saved models cannot read it."""
        return not self.placement.everywhere or self.granularity != "tensor"

    @property
    def needs_format_6(self) -> bool:
        """Whether releases before format 6 of saved models cannot read it."""
        return self.kv_cache is not None

    @property
    def needs_format_7(self) -> bool:
        """Whether releases before format 7 of saved models cannot read it."""
        return self.per_pass

    def to_dict(self) -> JsonObject:
        fields = super().to_dict() | {"rules": [str(rule) for rule in self.rules]}
        if self.placement.everywhere:
            del fields["placement"]  # what earlier releases wrote, and read
        if self.granularity == "tensor":
            del fields["granularity"]
        if self.kv_cache is None:
            del fields["kv_cache"]
        if not self.per_pass:
            del fields["per_pass"]
        return fields


def parse_bits(text: str) -> tuple[int, int]:
    """Bits of weights and of activations from `w8a8`."""
    match = re.fullmatch(r"w([0-9]{1,2})a([0-9]{1,2})", text, re.IGNORECASE)
    if match is None:
        raise SpecError(f"bits are written like w8a8 or w4a8, got {text!r}")
    return int(match[1]), int(match[2])


class QuantizedSpec(Spec):
    """A quantized model: how it was asked for, and every site with its grid (`u8`, `s8@0`, `s8@token`)."""

    spec: Annotated[QuantSpec, BeforeValidator(lambda value: nested(QuantSpec, value))]
    sites: dict[str, str]
