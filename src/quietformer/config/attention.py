"""What an attention layer is made of: a normalizer, a gate, and for vision models a patch norm."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from quietformer.config.registry import Registry
from quietformer.config.spec_base import Spec
from quietformer.errors import SpecError


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
    def build(self, geometry: HeadGeometry) -> Any:
        """A `Normalizer`: a module taking (scores_BHQK, visible or None) to weights_BHQK, in float32 or wider."""


class GateSpec(Spec):
    """What scales a head's output by a learned function of the layer's input."""

    @abstractmethod
    def build(self, geometry: HeadGeometry) -> Any:
        """A `Gate`: a module taking inputs_BQd to gates_BQH1 or gates_BQHD, in float32 or wider."""


normalizers: Registry[NormalizerSpec] = Registry("normalizer", home="quietformer.attention.normalizers")

gates: Registry[GateSpec] = Registry("gate", home="quietformer.attention.gates")


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
