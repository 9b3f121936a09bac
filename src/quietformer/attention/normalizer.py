"""What every normalizer is to the core."""

# B batch, H heads, Q queries, K keys

from __future__ import annotations

import torch
from torch import Tensor, nn

from quietformer.attention.masks import Causal


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 for half precisions, and never narrower than the input (gradcheck needs float64)."""
    return torch.promote_types(dtype, torch.float32)


class Normalizer(nn.Module):
    """Turns scores into weights, in float32 or wider; hidden keys get exactly zero."""

    def forward(self, scores_BHQK: Tensor, visible: Tensor | None = None) -> Tensor:
        """`visible` is boolean and broadcasts over the scores; None means all keys are."""
        raise NotImplementedError

    def attend(
        self,
        query_BHQD: Tensor,
        key_BHKD: Tensor,
        value_BHKD: Tensor,
        *,
        scaling: float,
        bias: Tensor | None,
        visible: Tensor | None,
        causal: Causal | None,
        dropout: float,
    ) -> Tensor | None:
        """The context (B, H, Q, D) without the weights ever being held; None where computing them is as good.

        `bias` is added to the scores, in float32 or wider and the lowest number where a key is hidden; a causal mask comes by
        itself, with neither, or not at all.
        """
        return None

    def advance_(self, steps: int = 1) -> None:
        """The optimizer has made a step; for normalizers that change over training."""

    def check_cache(self) -> None:
        """Raise if weights depend on how many keys there are in all, which a growing key/value cache changes."""
