"""Clipped softmax that lets every row of a causal model do nothing, the first one too."""

# B batch, H heads, Q queries, K keys, D features of a head

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field
from torch import Tensor

from quietformer.attention.masks import Causal, visible_keys
from quietformer.attention.normalizers.base import Normalizer
from quietformer.attention.normalizers.clipped_softmax import ClippedSoftmax, ClippedSoftmaxNormalizer, count_keys
from quietformer.config.attention import HeadGeometry, normalizers


class ClippedCausalNormalizer(ClippedSoftmaxNormalizer):
    """Clipped softmax; a row that sees one key, whose softmax is 1 whatever the score, gives it nothing."""

    def forward(self, scores_BHQK: Tensor, visible: Tensor | None = None) -> Tensor:
        weights_BHQK = super().forward(scores_BHQK, visible)
        n_keys = scores_BHQK.shape[-1] if visible is None else count_keys(visible, "row")
        return weights_BHQK * _more_than_one(n_keys, weights_BHQK)

    def attend(self, query_BHQD: Tensor, key_BHKD: Tensor, value_BHKD: Tensor, **how: Any) -> Tensor | None:
        context_BHQD = super().attend(query_BHQD, key_BHKD, value_BHKD, **how)
        if context_BHQD is None:
            return None
        causal: Causal | None = how["causal"]
        mask: Tensor | None = how["mask"]
        n_keys: Tensor | int = key_BHKD.shape[2]
        if causal is not None:
            n_keys = causal.count("row")
        elif mask is not None:
            n_keys = count_keys(visible_keys(mask), "row")
        return context_BHQD * _more_than_one(n_keys, context_BHQD)


def _more_than_one(n_keys: Tensor | int, like: Tensor) -> Tensor | float:
    """1 for rows that have a choice, 0 for those that have none."""
    return (n_keys > 1).to(like) if isinstance(n_keys, Tensor) else float(n_keys > 1)


@normalizers.register("clipped_causal")
class ClippedCausal(ClippedSoftmax):
    """Clipped softmax for causal models: gamma by the keys a row sees, and a row that sees one key gives it no weight.

    However it is stretched and clipped, a lone key keeps all of its row's weight; the first token then still has to make its own
    values small, which takes the outliers that clipping is there to take away.
    """

    keys: Literal["sequence", "row"] = Field(
        default="row", description="T: the keys visible to each row, or those of the sequence"
    )

    def build(self, geometry: HeadGeometry) -> Normalizer:
        return ClippedCausalNormalizer(self)
