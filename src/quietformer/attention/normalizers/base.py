"""What every normalizer is to the core."""

# B batch, H heads, Q queries, K keys

from __future__ import annotations

from torch import Tensor, nn

from quietformer.attention.masks import Causal


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
        mask: Tensor | None,
        causal: Causal | None,
        dropout: float,
    ) -> Tensor | None:
        """The context (B, H, Q, D) without the weights ever being held; None where computing them is as good.

        Of the mask, which is added to the scores or says what is visible, and the causal one there is one at most.
        """
        return None

    def advance_(self, steps: int = 1) -> None:
        """The optimizer has made a step; for normalizers that change over training."""

    def check_cache(self) -> None:
        """Raise if weights depend on how many keys there are in all, which a growing key/value cache changes."""
