"""Sigmoid attention (Ramapuram et al., arXiv 2409.04431): each key is weighed by itself, without normalization."""

# B batch, H heads, Q queries, K keys

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from quietformer.attention.dtypes import accumulation_dtype
from quietformer.attention.kernels.row_weights import RowWeights
from quietformer.attention.masks import AnyMask, Causal, visible_keys
from quietformer.attention.normalizers.base import Normalizer
from quietformer.attention.normalizers.clipped_softmax import count_keys
from quietformer.config.attention import HeadGeometry, NormalizerSpec, normalizers
from quietformer.errors import QuietformerError


class SigmoidNormalizer(Normalizer):
    """sigmoid(x + bias), the bias being fixed or -log(T)."""

    def __init__(self, spec: Sigmoid) -> None:
        super().__init__()
        self.spec = spec

    def bias(self, n_keys: Tensor | int, dtype: torch.dtype) -> Tensor | float:
        """The bias of rows that see so many keys, broadcastable over BHQK."""
        if self.spec.bias is not None:
            return self.spec.bias
        return -n_keys.clamp(min=1).to(dtype).log() if isinstance(n_keys, Tensor) else -math.log(max(n_keys, 1))

    def forward(self, scores_BHQK: Tensor, visible: Tensor | None = None) -> Tensor:
        x_BHQK = scores_BHQK.to(accumulation_dtype(scores_BHQK.dtype))
        n_keys = scores_BHQK.shape[-1] if visible is None else count_keys(visible, self.spec.keys)
        weights_BHQK = torch.sigmoid(x_BHQK + self.bias(n_keys, x_BHQK.dtype))
        return weights_BHQK if visible is None else weights_BHQK * visible

    def row_weights(self, mask: AnyMask, n_keys: int, dtype: torch.dtype) -> RowWeights:
        counted: Tensor | int = n_keys
        if isinstance(mask, Causal):
            counted = mask.count(self.spec.keys)
        elif mask is not None:
            counted = count_keys(visible_keys(mask), self.spec.keys)
        return RowWeights("sigmoid", low=self.bias(counted, accumulation_dtype(dtype)))

    def check_cache(self) -> None:
        """Refuse a growing key/value cache where it would change the bias that earlier tokens were computed with."""
        if self.spec.bias is None and self.spec.keys == "sequence":
            raise QuietformerError(
                f"the bias of {self.spec} depends on the sequence length, which a key/value cache changes at every step; "
                "use keys='row' or a fixed bias, or call with use_cache=False"
            )


@normalizers.register("sigmoid")
class Sigmoid(NormalizerSpec):
    """The sigmoid of each score: a row may have any sum, also none.

    With the bias -log(T), a row of T scores near zero starts with a sum near 1, as in softmax.
    """

    bias: float | None = Field(default=None, description="added to the scores; -log(T) if not given")
    keys: Literal["sequence", "row"] = Field(
        default="row", description="T: the keys visible to each row, or those of the sequence"
    )

    def build(self, geometry: HeadGeometry) -> Normalizer:
        return SigmoidNormalizer(self)
