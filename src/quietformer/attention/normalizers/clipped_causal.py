"""Clipped softmax that lets every row of a causal model do nothing, including the first row."""

# B batch, H heads, Q queries, K keys, D features per head

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from quietformer.attention.call_settings import FusedOptions
from quietformer.attention.dtypes import accumulation_dtype
from quietformer.attention.kernels.row_weights import RowWeights
from quietformer.attention.masks import AnyMask, Causal, visible_keys
from quietformer.attention.normalizers.base import Normalizer
from quietformer.attention.normalizers.clipped_softmax import ClippedSoftmax, ClippedSoftmaxNormalizer, count_keys
from quietformer.config.attention import HeadGeometry, normalizers


class ClippedCausalNormalizer(ClippedSoftmaxNormalizer):
    """Clipped softmax; a row that sees only one key, whose softmax is always 1, gives it weight 0."""

    def forward(self, scores_BHQK: Tensor, visible: Tensor | None = None) -> Tensor:
        weights_BHQK = super().forward(scores_BHQK, visible)
        n_keys = scores_BHQK.shape[-1] if visible is None else count_keys(visible, "row")
        return weights_BHQK * _more_than_one(n_keys, weights_BHQK)

    def attend(
        self, query_BHQD: Tensor, key_BHKD: Tensor, value_BHKD: Tensor, mask: AnyMask, options: FusedOptions
    ) -> Tensor | None:
        context_BHQD = super().attend(query_BHQD, key_BHKD, value_BHKD, mask, options)
        if context_BHQD is None:
            return None
        return context_BHQD * _more_than_one(_keys_of_rows(mask, key_BHKD.shape[2]), context_BHQD)

    def row_weights(self, mask: AnyMask, n_keys: int, dtype: torch.dtype) -> RowWeights | None:
        found = super().row_weights(mask, n_keys, dtype)
        counted = _keys_of_rows(mask, n_keys)
        if found is None or not isinstance(counted, Tensor):
            return found if n_keys > 1 else None
        return replace(found, factor=(counted > 1).to(accumulation_dtype(dtype)))


def _keys_of_rows(mask: AnyMask, n_keys: int) -> Tensor | int:
    """The number of keys that each row sees."""
    if isinstance(mask, Causal):
        return mask.count("row")
    return n_keys if mask is None else count_keys(visible_keys(mask), "row")


def _more_than_one(n_keys: Tensor | int, like: Tensor) -> Tensor | float:
    """1 for rows that see several keys, 0 for rows that see only one."""
    return (n_keys > 1).to(like) if isinstance(n_keys, Tensor) else float(n_keys > 1)


@normalizers.register("clipped_causal")
class ClippedCausal(ClippedSoftmax):
    """Clipped softmax for causal models: gamma depends on the keys a row sees, and a row that sees one key gives it no weight.

    Stretching and clipping cannot change the weight of a single visible key: it stays 1. The first token would still have to
    make its values small to do nothing, which needs the outliers that clipping is meant to remove.
    """

    keys: Literal["sequence", "row"] = Field(
        default="row", description="T: the keys visible to each row, or those of the sequence"
    )

    def build(self, geometry: HeadGeometry) -> Normalizer:
        return ClippedCausalNormalizer(self)
