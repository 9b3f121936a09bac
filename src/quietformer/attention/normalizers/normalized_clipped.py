"""Normalized clipped softmax (Liao and Monz, arXiv 2402.12102): before the clip, every row has the same sum."""

# B batch, H heads, Q queries, K keys

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator
from torch import Tensor

from quietformer.attention.normalizers.base import Normalizer
from quietformer.attention.normalizers.clipped_softmax import ClippingNormalizer
from quietformer.config.attention import HeadGeometry, NormalizerSpec, normalizers


class NormalizedClippedNormalizer(ClippingNormalizer):
    """Clipped softmax with gamma = (beta - zeta) / (T - 1) by row: the stretched row sums to beta, its largest value is zeta."""

    spec: NormalizedClipped

    def full_gamma(self, n_keys: Tensor | float) -> Tensor | float:
        # A row of one key has weight zeta, clipped to 1, with any gamma.
        others = (n_keys - 1).clamp(min=1) if isinstance(n_keys, Tensor) else max(n_keys - 1, 1)
        return (self.spec.beta - self.spec.zeta) / others


@normalizers.register("normalized_clipped")
class NormalizedClipped(NormalizerSpec):
    """Clipped softmax whose stretched rows sum to beta, however many keys they see; a uniform row is never clipped to zero.

    gamma = (beta - zeta) / (T - 1), where T is the number of keys visible to the row.
    """

    beta: float = Field(default=1.0, ge=0, description="sum of a row before the clip")
    zeta: float = Field(default=1.03, ge=1, description="upper stretch")
    warmup_steps: int = Field(default=0, ge=0, description="optimizer steps over which |gamma| rises from 0")

    @model_validator(mode="after")
    def _gamma_is_not_positive(self) -> NormalizedClipped:
        if self.beta > self.zeta:
            raise ValueError(f"beta must be at most zeta, got beta={self.beta:g}, zeta={self.zeta:g}")
        return self

    @property
    def keys(self) -> Literal["sequence", "row"]:
        return "row"

    def build(self, geometry: HeadGeometry) -> Normalizer:
        return NormalizedClippedNormalizer(self)
