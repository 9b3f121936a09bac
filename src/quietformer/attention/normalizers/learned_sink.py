"""A learned sink: one logit per head that receives attention weight and has no value."""

# B batch, H heads, Q queries, K keys

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from quietformer.attention.call_settings import FusedOptions
from quietformer.attention.dtypes import accumulation_dtype
from quietformer.attention.kernels.row_weights import RowWeights
from quietformer.attention.kernels.sdpa import sink_attention
from quietformer.attention.masks import AnyMask
from quietformer.attention.normalizers.base import Normalizer
from quietformer.attention.normalizers.softmax import without_blind_rows
from quietformer.config.attention import HeadGeometry, NormalizerSpec, normalizers


def softmax_with_sink(scores_BHQK: Tensor, sink: Tensor, visible: Tensor | None = None) -> Tensor:
    """exp(x) / (exp(sink) + sum exp(x)), shifted by the largest exponent to avoid overflow."""
    x_BHQK = scores_BHQK.to(accumulation_dtype(scores_BHQK.dtype))
    sink = sink.to(x_BHQK.dtype)
    # The result does not depend on the shift, so neither does its gradient: detach it.
    shift = torch.maximum(x_BHQK.amax(dim=-1, keepdim=True), sink).detach()
    exp_BHQK = torch.exp(x_BHQK - shift)
    weights_BHQK = exp_BHQK / (torch.exp(sink - shift) + exp_BHQK.sum(dim=-1, keepdim=True))
    return without_blind_rows(weights_BHQK, visible)


class LearnedSinkNormalizer(Normalizer):
    """exp(x) / (exp(s_h) + sum exp(x)) with one learned s per head."""

    def __init__(self, n_heads: int, init: float) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.full((n_heads,), init))

    def forward(self, scores_BHQK: Tensor, visible: Tensor | None = None) -> Tensor:
        return softmax_with_sink(scores_BHQK, self.logit.view(-1, 1, 1), visible)

    def attend(
        self, query_BHQD: Tensor, key_BHKD: Tensor, value_BHKD: Tensor, mask: AnyMask, options: FusedOptions
    ) -> Tensor:
        return sink_attention(query_BHQD, key_BHKD, value_BHKD, self.logit, mask, options)

    def row_weights(self, mask: AnyMask, n_keys: int, dtype: torch.dtype) -> RowWeights:
        return RowWeights("softmax", sink=self.logit)


@normalizers.register("learned_sink")
class LearnedSink(NormalizerSpec):
    """Softmax over the keys and one learned logit per head; the weight of the logit is dropped."""

    init: float = Field(default=0.0, description="starting logit; strongly negative starts as softmax")

    def build(self, geometry: HeadGeometry) -> Normalizer:
        return LearnedSinkNormalizer(geometry.n_heads, self.init)
