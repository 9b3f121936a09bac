"""Clipped softmax (the paper's equation 4): exact zeros and ones from finite scores."""

# B batch, H heads, Q queries, K keys

from __future__ import annotations

import warnings
from typing import Literal, Protocol

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from quietformer.attention.call_settings import FusedOptions
from quietformer.attention.dtypes import accumulation_dtype
from quietformer.attention.kernels.blocked import Clipping, clipped_attention
from quietformer.attention.kernels.flex import flex_clipped_attention
from quietformer.attention.kernels.row_weights import RowWeights
from quietformer.attention.masks import AnyMask, Causal, visible_keys
from quietformer.attention.normalizers.base import Normalizer
from quietformer.attention.normalizers.softmax import masked_softmax
from quietformer.config.attention import HeadGeometry, NormalizerSpec, normalizers
from quietformer.errors import QuietformerError, QuietformerWarning

DEFAULT_ALPHA = 4.0

WORTH_BLOCKS = 2**16
"""With fewer weights per sequence, storing them is faster than computing in blocks."""

IDLE_FORWARDS = 200
"""Number of training forwards without an optimizer step after which a warm-up warns that it is not advanced."""


def stretch_and_clip(probs: Tensor, gamma: Tensor | float, zeta: float) -> Tensor:
    """clip((zeta - gamma) * p + gamma, 0, 1)."""
    return torch.clamp((zeta - gamma) * probs + gamma, 0.0, 1.0)


def count_keys(visible: Tensor, by: Literal["sequence", "row"]) -> Tensor:
    """The number of keys of the sequence or of each query's row, shaped to broadcast over BHQK.

    A key that no query can see is padding and does not count, so padding a batch changes nothing.
    """
    counted = visible if by == "row" else visible.any(dim=-2, keepdim=True)
    return counted.sum(dim=-1, keepdim=True)


def fits(query_BHQD: Tensor, key_BHKD: Tensor, value_BHKD: Tensor, mask: AnyMask) -> bool:
    """Whether the shapes are regular and the weights many enough; otherwise the plain core computes or raises."""
    n_batch, n_heads, n_queries, _ = query_BHQD.shape
    n_keys = key_BHKD.shape[2]
    shape = (n_batch, n_heads, n_queries, n_keys)
    alike = key_BHKD.shape[:2] == (n_batch, n_heads) and value_BHKD.shape[:3] == key_BHKD.shape[:3]
    sizes = mask.shape if isinstance(mask, Tensor) else ()
    broadcast = len(sizes) <= 4 and all(
        size in (1, whole) for size, whole in zip(reversed(sizes), reversed(shape), strict=False)
    )
    return alike and broadcast and n_heads * n_queries * n_keys >= max(1, WORTH_BLOCKS)


def blocks_can_take(*tensors: Tensor) -> bool:
    """Whether these are ordinary tensors with memory, and no dispatch mode or compiler has to see each operation."""
    watched = torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0
    return not watched and all(type(x) in (Tensor, nn.Parameter) and x.device.type != "meta" for x in tensors)


class ClippingSpec(Protocol):
    """What a spec says about clipping, however gamma is found."""

    @property
    def zeta(self) -> float: ...

    @property
    def keys(self) -> Literal["sequence", "row"]: ...

    @property
    def warmup_steps(self) -> int: ...


class ClippingNormalizer(Normalizer):
    """clip((zeta - gamma) * softmax(x) + gamma, 0, 1); subclasses say gamma, and a warm-up moves it away from 0."""

    step: Tensor | None

    def __init__(self, spec: ClippingSpec) -> None:
        super().__init__()
        self.spec = spec
        # The step is a buffer so that the state dict holds all state; without a warm-up there is no step to keep.
        self._idle = 0
        self.register_buffer("step", torch.zeros((), dtype=torch.int64) if spec.warmup_steps else None)

    def advance_(self, steps: int = 1) -> None:
        """Count optimizer steps; forward passes are not counted, since accumulation and recomputation repeat them."""
        if self.step is not None:
            self.step += steps

    def full_gamma(self, n_keys: Tensor | float) -> Tensor | float:
        """Gamma after the warm-up, for rows that see so many keys (at least 1)."""
        raise NotImplementedError

    def gamma(self, n_keys: Tensor | int, dtype: torch.dtype) -> Tensor | float:
        """The gamma of the current step, broadcastable over BHQK."""
        # A row that sees no key stays zero with any finite gamma.
        n = n_keys.clamp(min=1).to(dtype) if isinstance(n_keys, Tensor) else max(n_keys, 1)
        gamma = self.full_gamma(n)
        if self.step is not None:
            gamma = gamma * (self.step.to(dtype) / self.spec.warmup_steps).clamp(0.0, 1.0)
        return gamma

    def _notice_idle_warmup(self) -> None:
        """Warn if the warm-up is never advanced: the run would train with gamma = 0, which is plain softmax."""
        if self.step is None or not self.training or torch.compiler.is_compiling():
            return
        self._idle += 1
        if self._idle == IDLE_FORWARDS and int(self.step) == 0:
            warnings.warn(
                f"the warm-up of {self.spec} was not advanced in {IDLE_FORWARDS} training forwards, so gamma is still 0; "
                "pass WarmupCallback to the Trainer or call advance_warmup_ after each optimizer step",
                QuietformerWarning,
                stacklevel=2,
            )

    def forward(self, scores_BHQK: Tensor, visible: Tensor | None = None) -> Tensor:
        self._notice_idle_warmup()
        probs_BHQK = masked_softmax(scores_BHQK, visible)
        gamma = self._gamma_for(scores_BHQK.shape[-1], visible, probs_BHQK.dtype)
        return stretch_and_clip(probs_BHQK, gamma, self.spec.zeta)

    def attend(
        self, query_BHQD: Tensor, key_BHKD: Tensor, value_BHKD: Tensor, mask: AnyMask, options: FusedOptions
    ) -> Tensor | None:
        tensors = (query_BHQD, key_BHKD, value_BHKD)
        flexible = query_BHQD.is_cuda and not options.dropout
        if not fits(*tensors, mask) or not (flexible or blocks_can_take(*tensors)):
            return None
        self._notice_idle_warmup()
        gamma = self._gamma_under(mask, key_BHKD.shape[2], accumulation_dtype(query_BHQD.dtype))
        if isinstance(gamma, Tensor) and gamma.requires_grad:
            return None
        clipping = Clipping(gamma, self.spec.zeta, options.dropout)
        attention = flex_clipped_attention if flexible else clipped_attention
        return attention(*tensors, clipping, scaling=options.scaling, mask=mask)

    def row_weights(self, mask: AnyMask, n_keys: int, dtype: torch.dtype) -> RowWeights | None:
        self._notice_idle_warmup()
        gamma = self._gamma_under(mask, n_keys, accumulation_dtype(dtype))
        if isinstance(gamma, Tensor) and gamma.requires_grad:
            return None
        return RowWeights("clipped", low=gamma, zeta=self.spec.zeta)

    def _gamma_under(self, mask: AnyMask, n_keys: int, dtype: torch.dtype) -> Tensor | float:
        if isinstance(mask, Causal):
            return self.gamma(mask.count(self.spec.keys), dtype)
        return self._gamma_for(n_keys, None if mask is None else visible_keys(mask), dtype)

    def _gamma_for(self, n_keys: int, visible: Tensor | None, dtype: torch.dtype) -> Tensor | float:
        return self.gamma(n_keys if visible is None else count_keys(visible, self.spec.keys), dtype)


class ClippedSoftmaxNormalizer(ClippingNormalizer):
    """Clipped softmax with gamma fixed or -alpha / T."""

    spec: ClippedSoftmax

    def full_gamma(self, n_keys: Tensor | float) -> Tensor | float:
        return -self.spec.resolved_alpha / n_keys if self.spec.gamma is None else self.spec.gamma

    def check_cache(self) -> None:
        """Refuse a growing key/value cache where it would change the gamma that earlier tokens were computed with."""
        if self.spec.gamma is None and self.spec.keys == "sequence":
            raise QuietformerError(
                f"gamma of {self.spec} depends on the sequence length, which a key/value cache changes at every step; "
                "use keys='row' or a fixed gamma, or call with use_cache=False"
            )


@normalizers.register("clipped_softmax")
class ClippedSoftmax(NormalizerSpec):
    """Softmax stretched to (gamma, zeta) and clipped to [0, 1]; clipped weights pass no gradient.

    Set gamma, or alpha for gamma = -alpha / T (the paper recommends alpha in [2, 4] across sequence lengths).
    """

    gamma: float | None = Field(default=None, le=0, description="lower stretch, fixed")
    zeta: float = Field(default=1.0, ge=1, description="upper stretch")
    alpha: float | None = Field(
        default=None, ge=0, description=f"gamma = -alpha / T; {DEFAULT_ALPHA:g} if gamma is not given either"
    )
    keys: Literal["sequence", "row"] = Field(
        default="sequence", description="T: the keys of the sequence, or those visible to each row"
    )
    warmup_steps: int = Field(default=0, ge=0, description="optimizer steps over which |gamma| rises from 0")

    @model_validator(mode="after")
    def _one_source_of_gamma(self) -> ClippedSoftmax:
        if self.gamma is not None and self.alpha is not None:
            raise ValueError(f"give gamma or alpha, not both (gamma={self.gamma:g}, alpha={self.alpha:g})")
        return self

    @property
    def resolved_alpha(self) -> float:
        return DEFAULT_ALPHA if self.alpha is None else self.alpha

    def build(self, geometry: HeadGeometry) -> Normalizer:
        return ClippedSoftmaxNormalizer(self)
