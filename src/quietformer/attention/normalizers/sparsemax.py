"""Sparsemax (Martins and Astudillo, 2016): the point of the simplex nearest to the scores."""

# B batch, H heads, Q queries, K keys

from __future__ import annotations

import torch
from torch import Tensor

from quietformer.attention.dtypes import accumulation_dtype
from quietformer.attention.normalizers.base import Normalizer
from quietformer.attention.normalizers.softmax import without_blind_rows
from quietformer.config.attention import HeadGeometry, NormalizerSpec, normalizers


def below_the_largest(scores_BHQK: Tensor, reach: float) -> Tensor:
    """Scores minus the largest of their row, no lower than -reach: hidden keys have scores whose squares overflow."""
    x_BHQK = scores_BHQK.to(accumulation_dtype(scores_BHQK.dtype))
    return (x_BHQK - x_BHQK.amax(dim=-1, keepdim=True).detach()).clamp(min=-reach)


def sparsemax(scores_BHQK: Tensor, visible: Tensor | None = None) -> Tensor:
    """relu(x - tau), with tau such that the row sums to 1."""
    # Keys more than 1 below the largest have no weight.
    x_BHQK = below_the_largest(scores_BHQK, reach=2.0)
    with torch.no_grad():
        sorted_BHQK = x_BHQK.sort(dim=-1, descending=True).values
        place_K = torch.arange(1, x_BHQK.shape[-1] + 1, dtype=x_BHQK.dtype, device=x_BHQK.device)
        tau_BHQK = (sorted_BHQK.cumsum(-1) - 1) / place_K  # if the first 1, 2, ... keys had all the weight
        n_kept = (sorted_BHQK > tau_BHQK).sum(-1, keepdim=True)
        kept_BHQK = (x_BHQK > tau_BHQK.gather(-1, n_kept - 1)).to(x_BHQK.dtype)
        count = kept_BHQK.sum(-1, keepdim=True)
    # Once more from the keys that are kept: the gradient of tau is theirs alone.
    tau = ((x_BHQK * kept_BHQK).sum(-1, keepdim=True) - 1) / count
    return without_blind_rows(torch.relu(x_BHQK - tau), visible)


class SparsemaxNormalizer(Normalizer):
    """argmin |p - x|^2 over probabilities p."""

    def forward(self, scores_BHQK: Tensor, visible: Tensor | None = None) -> Tensor:
        return sparsemax(scores_BHQK, visible)


@normalizers.register("sparsemax")
class Sparsemax(NormalizerSpec):
    """Rows sum to one, and keys more than 1 below the largest score get exactly no weight."""

    def build(self, geometry: HeadGeometry) -> Normalizer:
        return SparsemaxNormalizer()
