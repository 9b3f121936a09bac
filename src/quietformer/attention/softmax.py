"""Plain softmax: the baseline, and the probabilities that clipped softmax stretches."""

# B batch, H heads, Q queries, K keys

from __future__ import annotations

import torch
from torch import Tensor

from quietformer.attention.normalizer import Normalizer, accumulation_dtype
from quietformer.specs import HeadGeometry, NormalizerSpec, normalizers


def masked_softmax(scores_BHQK: Tensor, visible: Tensor | None) -> Tensor:
    """softmax(x), with hidden keys exactly 0 and a row without visible keys all 0 rather than uniform."""
    probs_BHQK = torch.softmax(scores_BHQK, dim=-1, dtype=accumulation_dtype(scores_BHQK.dtype))
    return probs_BHQK if visible is None else probs_BHQK.masked_fill(~visible, 0.0)


class SoftmaxNormalizer(Normalizer):
    """softmax(x)."""

    def forward(self, scores_BHQK: Tensor, visible: Tensor | None = None) -> Tensor:
        return masked_softmax(scores_BHQK, visible)


@normalizers.register("softmax")
class Softmax(NormalizerSpec):
    """Vanilla attention: weights are positive and sum to one, so a head can never do nothing."""

    def build(self, geometry: HeadGeometry) -> Normalizer:
        return SoftmaxNormalizer()
