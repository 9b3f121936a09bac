"""Clipped softmax1: clipped softmax over the keys and a sink whose logit is zero."""

# B batch, H heads, Q queries, K keys, D features per head

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from quietformer.attention.call_settings import FusedOptions
from quietformer.attention.dtypes import accumulation_dtype
from quietformer.attention.kernels.blocked import Clipping, clipped_attention
from quietformer.attention.kernels.row_weights import RowWeights
from quietformer.attention.masks import AnyMask, read_mask, split_mask
from quietformer.attention.normalizers.base import Normalizer
from quietformer.attention.normalizers.clipped_softmax import (
    ClippedSoftmax,
    ClippedSoftmaxNormalizer,
    blocks_can_take,
    fits,
    stretch_and_clip,
)
from quietformer.attention.normalizers.learned_sink import softmax_with_sink
from quietformer.config.attention import HeadGeometry, normalizers


class ClippedSoftmax1Normalizer(ClippedSoftmaxNormalizer):
    """clip((zeta - gamma) * softmax1(x) + gamma, 0, 1)."""

    def forward(self, scores_BHQK: Tensor, visible: Tensor | None = None) -> Tensor:
        self._notice_idle_warmup()
        probs_BHQK = softmax_with_sink(scores_BHQK, scores_BHQK.new_zeros(()), visible)
        gamma = self._gamma_for(scores_BHQK.shape[-1], visible, probs_BHQK.dtype)
        return stretch_and_clip(probs_BHQK, gamma, self.spec.zeta)

    def attend(
        self, query_BHQD: Tensor, key_BHKD: Tensor, value_BHKD: Tensor, mask: AnyMask, options: FusedOptions
    ) -> Tensor | None:
        """Clipped softmax over one more key, whose score and value are zero."""
        tensors = (query_BHQD, key_BHKD, value_BHKD)
        if not fits(*tensors, mask) or not blocks_can_take(*tensors):
            return None
        self._notice_idle_warmup()
        n_keys, dtype = key_BHKD.shape[2], accumulation_dtype(query_BHQD.dtype)
        clipping = Clipping(self._gamma_under(mask, n_keys, dtype), self.spec.zeta, options.dropout)
        tensor, causal = split_mask(mask)
        bias, _ = read_mask(tensor if causal is None else causal.whole(), n_keys, dtype)
        if bias is not None:
            bias = nn.functional.pad(bias.expand(*bias.shape[:-1], n_keys), (0, 1))
        key, value = (nn.functional.pad(x, (0, 0, 0, 1)) for x in (key_BHKD, value_BHKD))
        return clipped_attention(query_BHQD, key, value, clipping, scaling=options.scaling, mask=bias)

    def row_weights(self, mask: AnyMask, n_keys: int, dtype: torch.dtype) -> RowWeights | None:
        found = super().row_weights(mask, n_keys, dtype)
        return None if found is None else replace(found, sink=0.0)


@normalizers.register("clipped_softmax1")
class ClippedSoftmax1(ClippedSoftmax):
    """softmax1 stretched to (gamma, zeta) and clipped to [0, 1]: exact zeros, also for a row that sees one key."""

    keys: Literal["sequence", "row"] = Field(
        default="row", description="T: the keys visible to each row, or those of the sequence"
    )

    def build(self, geometry: HeadGeometry) -> Normalizer:
        return ClippedSoftmax1Normalizer(self)
