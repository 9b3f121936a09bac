"""softmax1: a sink whose logit is fixed at zero."""

# B batch, H heads, Q queries, K keys

from __future__ import annotations

import torch
from torch import Tensor

from quietformer.attention.call_settings import FusedOptions
from quietformer.attention.kernels.row_weights import RowWeights
from quietformer.attention.kernels.sdpa import sink_attention
from quietformer.attention.masks import AnyMask
from quietformer.attention.normalizers.base import Normalizer
from quietformer.attention.normalizers.learned_sink import softmax_with_sink
from quietformer.config.attention import HeadGeometry, NormalizerSpec, normalizers


class Softmax1Normalizer(Normalizer):
    """exp(x) / (1 + sum exp(x))."""

    def forward(self, scores_BHQK: Tensor, visible: Tensor | None = None) -> Tensor:
        return softmax_with_sink(scores_BHQK, scores_BHQK.new_zeros(()), visible)

    def attend(
        self, query_BHQD: Tensor, key_BHKD: Tensor, value_BHKD: Tensor, mask: AnyMask, options: FusedOptions
    ) -> Tensor:
        return sink_attention(query_BHQD, key_BHKD, value_BHKD, None, mask, options)

    def row_weights(self, mask: AnyMask, n_keys: int, dtype: torch.dtype) -> RowWeights:
        return RowWeights("softmax", sink=0.0)


@normalizers.register("softmax1")
class Softmax1(NormalizerSpec):
    """Softmax with 1 added to the denominator: very negative scores give weights near zero."""

    def build(self, geometry: HeadGeometry) -> Normalizer:
        return Softmax1Normalizer()
