"""The base class of all normalizers."""

# B batch, H heads, Q queries, K keys

from __future__ import annotations

import torch
from torch import Tensor, nn

from quietformer.attention.call_settings import FusedOptions
from quietformer.attention.kernels.row_weights import RowWeights
from quietformer.attention.masks import AnyMask


class Normalizer(nn.Module):
    """Turns scores into weights, in float32 or wider; hidden keys get exactly zero."""

    def forward(self, scores_BHQK: Tensor, visible: Tensor | None = None) -> Tensor:
        """The weights (B, H, Q, K); `visible` is boolean and broadcasts over the scores, None means all keys are visible."""
        raise NotImplementedError

    def attend(
        self, query_BHQD: Tensor, key_BHKD: Tensor, value_BHKD: Tensor, mask: AnyMask, options: FusedOptions
    ) -> Tensor | None:
        """The context (B, H, Q, D), computed without storing the weights; None where storing them is no worse."""
        return None

    def row_weights(self, mask: AnyMask, n_keys: int, dtype: torch.dtype) -> RowWeights | None:
        """The weights as the Triton kernels compute them; None where they cannot."""
        return None

    def advance_(self, steps: int = 1) -> None:
        """Called after optimizer steps, for normalizers that change during training."""

    def check_cache(self) -> None:
        """Raise if the weights depend on the total number of keys, which changes as a key/value cache grows."""
