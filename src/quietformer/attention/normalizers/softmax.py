"""Plain softmax: the baseline, and the probabilities that clipped softmax stretches."""

# B batch, H heads, Q queries, K keys

from __future__ import annotations

import torch
from torch import Tensor

from quietformer.attention.call_settings import FusedOptions
from quietformer.attention.dtypes import accumulation_dtype
from quietformer.attention.kernels.sdpa import softmax_attention
from quietformer.attention.masks import AnyMask
from quietformer.attention.normalizers.base import Normalizer
from quietformer.config.attention import HeadGeometry, NormalizerSpec, normalizers


def masked_softmax(scores_BHQK: Tensor, visible: Tensor | None) -> Tensor:
    """softmax(x); hidden keys get exactly 0, and a row without visible keys is all 0 instead of uniform."""
    probs_BHQK = torch.softmax(scores_BHQK, dim=-1, dtype=accumulation_dtype(scores_BHQK.dtype))
    return without_blind_rows(probs_BHQK, visible)


def without_blind_rows(weights_BHQK: Tensor, visible: Tensor | None) -> Tensor:
    """The weights with rows that see no key set to 0; in other rows hidden keys already have weight exp(minimum) = 0."""
    if visible is None:
        return weights_BHQK
    # Multiplies by one number per row: torch.where over all weights would cost several times as much.
    return weights_BHQK * visible.any(dim=-1, keepdim=True)


class SoftmaxNormalizer(Normalizer):
    """softmax(x)."""

    def forward(self, scores_BHQK: Tensor, visible: Tensor | None = None) -> Tensor:
        return masked_softmax(scores_BHQK, visible)

    def attend(
        self, query_BHQD: Tensor, key_BHKD: Tensor, value_BHKD: Tensor, mask: AnyMask, options: FusedOptions
    ) -> Tensor:
        return softmax_attention(query_BHQD, key_BHKD, value_BHKD, mask, options)


@normalizers.register("softmax")
class Softmax(NormalizerSpec):
    """Vanilla attention: weights are positive and sum to one, so a head can never do nothing."""

    def build(self, geometry: HeadGeometry) -> Normalizer:
        return SoftmaxNormalizer()
