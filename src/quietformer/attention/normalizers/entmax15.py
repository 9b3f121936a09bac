"""1.5-entmax (Peters, Niculae and Martins, 2019): halfway between softmax and sparsemax."""

# B batch, H heads, Q queries, K keys

from __future__ import annotations

import torch
from torch import Tensor

from quietformer.attention.normalizers.base import Normalizer
from quietformer.attention.normalizers.softmax import without_blind_rows
from quietformer.attention.normalizers.sparsemax import below_the_largest
from quietformer.config.attention import HeadGeometry, NormalizerSpec, normalizers


def entmax15(scores_BHQK: Tensor, visible: Tensor | None = None) -> Tensor:
    """relu(x / 2 - tau)^2, with tau such that the row sums to 1."""
    # Keys more than 2 below the largest have no weight.
    x_BHQK = below_the_largest(scores_BHQK, reach=4.0) / 2
    with torch.no_grad():
        sorted_BHQK = x_BHQK.sort(dim=-1, descending=True).values
        place_K = torch.arange(1, x_BHQK.shape[-1] + 1, dtype=x_BHQK.dtype, device=x_BHQK.device)
        # If the first 1, 2, ... keys had all the weight.
        tau_BHQK = _threshold(sorted_BHQK.cumsum(-1), sorted_BHQK.square().cumsum(-1), place_K)
        n_kept = (sorted_BHQK >= tau_BHQK).sum(-1, keepdim=True)
        kept_BHQK = (x_BHQK > tau_BHQK.gather(-1, n_kept - 1)).to(x_BHQK.dtype)
        count = kept_BHQK.sum(-1, keepdim=True)
    # Once more from the keys that are kept: the gradient of tau is theirs alone.
    kept_x = x_BHQK * kept_BHQK
    tau = _threshold(kept_x.sum(-1, keepdim=True), kept_x.square().sum(-1, keepdim=True), count)
    return without_blind_rows(torch.relu(x_BHQK - tau).square(), visible)


def _threshold(total: Tensor, squares: Tensor, count: Tensor) -> Tensor:
    """The lower solution tau of sum (x - tau)^2 = 1 over so many values with this sum and sum of squares."""
    mean = total / count
    return mean - ((1 - squares) / count + mean.square()).clamp(min=0).sqrt()


class Entmax15Normalizer(Normalizer):
    """argmax p.x + Tsallis entropy of order 1.5 over probabilities p."""

    def forward(self, scores_BHQK: Tensor, visible: Tensor | None = None) -> Tensor:
        return entmax15(scores_BHQK, visible)


@normalizers.register("entmax15")
class Entmax15(NormalizerSpec):
    """Rows sum to one, and keys more than 2 below the largest score get exactly no weight."""

    def build(self, geometry: HeadGeometry) -> Normalizer:
        return Entmax15Normalizer()
