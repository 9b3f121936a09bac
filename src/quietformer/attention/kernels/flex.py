"""Clipped softmax through FlexAttention, for GPUs, in two passes.

The first pass computes the softmax denominator of each row. The second is a softmax over log w, where w are the clipped
weights; its output times the exponential of its log-sum-exp is the sum of w times the values. The log-sum-exp of the first
pass stays in the autograd graph, since the gradients of queries and keys depend on it.

Written for CUDA. On a CPU, FlexAttention only has an uncompiled forward pass. The tests run that, and check the gradients with
a replacement of FlexAttention made of ordinary operations.
"""

# B batch, H heads, Q queries, K keys, D features per head

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from quietformer.attention.kernels.blocked import Clipping
from quietformer.attention.masks import AnyMask, read_mask, split_mask


def flex_clipped_attention(
    query_BHQD: Tensor, key_BHKD: Tensor, value_BHKD: Tensor, clipping: Clipping, *, scaling: float, mask: AnyMask = None,
) -> Tensor:  # fmt: skip
    """The context (B, H, Q, D); dropout is not supported here."""
    from torch.nn.attention.flex_attention import AuxRequest

    attend = _compiled() if query_BHQD.is_cuda else _uncompiled()
    shape = (*query_BHQD.shape[:3], key_BHKD.shape[2])
    tensor_mask, causal = split_mask(mask)
    bias, visible = read_mask(tensor_mask, shape[-1], torch.float32)
    gamma: Tensor = torch.as_tensor(clipping.gamma, dtype=torch.float32, device=query_BHQD.device)
    gamma = gamma.expand(*shape[:3], 1)[..., 0]
    offsets = None if bias is None else bias.expand(shape)

    def biased(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        if causal is not None:
            seen = k <= q + causal.offset
            seen = seen if causal.padding_BK is None else seen & causal.padding_BK[b, k]
            return torch.where(seen, score, torch.finfo(torch.float32).min)
        return score if offsets is None else score + offsets[b, h, q, k]

    _, first = attend(
        query_BHQD, key_BHKD, value_BHKD, score_mod=biased, scale=scaling, return_aux=AuxRequest(lse=True)
    )
    normalizer_BHQ: Tensor = first.lse

    def clipped(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        low = gamma[b, h, q]
        weight = (clipping.zeta - low) * torch.exp(biased(score, b, h, q, k) - normalizer_BHQ[b, h, q]) + low
        positive = weight > 0
        # Take the logarithm of 1 where the weight is not positive, so that no gradient becomes NaN.
        return torch.where(positive, torch.log(torch.where(positive, weight, 1.0).clamp(max=1.0)), -torch.inf)

    context, second = attend(
        query_BHQD, key_BHKD, value_BHKD, score_mod=clipped, scale=scaling, return_aux=AuxRequest(lse=True)
    )
    total_BHQ = torch.exp(second.lse)  # zero for a row whose weights are all clipped to zero
    if visible is not None:
        total_BHQ = total_BHQ * visible.any(dim=-1)
    if causal is not None:
        total_BHQ = total_BHQ * (torch.as_tensor(causal.count("row"), device=query_BHQD.device) > 0).squeeze(-1)
    scaled: Tensor = torch.where(total_BHQ[..., None] > 0, context * total_BHQ[..., None], 0.0)
    return scaled.to(query_BHQD.dtype)


@cache
def _compiled() -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(_uncompiled())
    return compiled


def _uncompiled() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention
