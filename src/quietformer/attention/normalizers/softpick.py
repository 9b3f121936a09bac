"""Softpick (Zuhri et al., arXiv 2504.20966): a rectified softmax, whose rows may sum to less than one."""

# B batch, H heads, Q queries, K keys

from __future__ import annotations

import torch
from torch import Tensor

from quietformer.attention.dtypes import accumulation_dtype
from quietformer.attention.kernels.row_weights import SOFTPICK_EPSILON, RowWeights
from quietformer.attention.masks import AnyMask
from quietformer.attention.normalizers.base import Normalizer
from quietformer.config.attention import HeadGeometry, NormalizerSpec, normalizers


def softpick(scores_BHQK: Tensor, visible: Tensor | None = None) -> Tensor:
    """relu(exp(x) - 1) / (sum |exp(x) - 1| + epsilon), both divided by exp(m) with m the largest score, or 0."""
    x_BHQK = scores_BHQK.to(accumulation_dtype(scores_BHQK.dtype))
    # The result hardly depends on the shift (epsilon is divided by exp(m) too), so its gradient is left out.
    shift = x_BHQK.amax(dim=-1, keepdim=True).clamp(min=0).detach()
    unit = torch.exp(-shift)
    rise_BHQK = torch.exp(x_BHQK - shift) - unit
    if visible is not None:
        rise_BHQK = rise_BHQK * visible  # a hidden key would count as a score far below zero
    return torch.relu(rise_BHQK) / (rise_BHQK.abs().sum(dim=-1, keepdim=True) + SOFTPICK_EPSILON * unit)


class SoftpickNormalizer(Normalizer):
    """relu(exp(x) - 1) / sum |exp(x) - 1|."""

    def forward(self, scores_BHQK: Tensor, visible: Tensor | None = None) -> Tensor:
        return softpick(scores_BHQK, visible)

    def row_weights(self, mask: AnyMask, n_keys: int, dtype: torch.dtype) -> RowWeights:
        return RowWeights("softpick")


@normalizers.register("softpick")
class Softpick(NormalizerSpec):
    """Keys with scores below zero get no weight, and take weight from the others."""

    def build(self, geometry: HeadGeometry) -> Normalizer:
        return SoftpickNormalizer()
