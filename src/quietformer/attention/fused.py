"""Softmax, and softmax with a sink, through torch's fused attention, which never holds the weights.

A sink is one more key: its value is zero, and its score is its logit. Zero is what any query makes of a key of zeros; any
other logit takes one more feature, which every query has at one and of all keys only the sink's.
"""

# B batch, H heads, Q queries, K keys, D features of a head

from __future__ import annotations

import torch
from torch import Tensor, nn

from quietformer.attention.masks import Causal

FEATURES_ADDED = 8
"""Widths that are no multiple of eight make kernels fall back to slow ones."""


def softmax_attention(
    query_BHQD: Tensor,
    key_BHKD: Tensor,
    value_BHKD: Tensor,
    *,
    scaling: float,
    bias: Tensor | None = None,
    visible: Tensor | None = None,
    causal: Causal | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """The context (B, H, Q, D) of softmax; zero where a row sees no key."""
    simple = causal is not None and causal.padding_BK is None and causal.offset == 0
    if causal is not None and not simple:
        visible, bias = causal.whole(), causal.bias(query_BHQD.dtype)
    if bias is not None:
        bias = bias.clamp(min=torch.finfo(_dtype(query_BHQD)).min).to(query_BHQD.dtype)
    context: Tensor = nn.functional.scaled_dot_product_attention(
        query_BHQD, key_BHKD, value_BHKD, attn_mask=bias, dropout_p=dropout, scale=scaling, is_causal=simple
    )
    return context if visible is None else context * visible.any(dim=-1, keepdim=True)


def _dtype(query: Tensor) -> torch.dtype:
    """What the kernel computes in; its lowest number is finite, so that a row without visible keys does not become a NaN."""
    device = query.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else query.dtype


def sink_attention(
    query_BHQD: Tensor,
    key_BHKD: Tensor,
    value_BHKD: Tensor,
    logit_H: Tensor | None,
    *,
    scaling: float,
    bias: Tensor | None = None,
    causal: Causal | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """The context of softmax over the keys and a sink, whose logit is zero if none is given."""
    if causal is not None:  # a kernel told to be causal would hide the sink too
        bias = causal.bias(query_BHQD.dtype)
    width = value_BHKD.shape[-1]
    pad = nn.functional.pad
    if logit_H is None:
        key, value = pad(key_BHKD, (0, 0, 0, 1)), pad(value_BHKD, (0, 0, 0, 1))
    else:
        n_batch, n_heads, _, features = key_BHKD.shape
        unit = query_BHQD.new_zeros(FEATURES_ADDED)
        unit[0] = 1.0
        query_BHQD = torch.cat([query_BHQD, unit.expand(*query_BHQD.shape[:-1], FEATURES_ADDED)], -1)
        sink = pad((logit_H.to(key_BHKD.dtype) / scaling).view(1, -1, 1, 1), (features, FEATURES_ADDED - 1))
        key = torch.cat([pad(key_BHKD, (0, FEATURES_ADDED)), sink.expand(n_batch, n_heads, 1, -1)], -2)
        value = pad(value_BHKD, (0, FEATURES_ADDED, 0, 1))
    if bias is not None:
        bias = pad(bias.expand(*bias.shape[:-1], key_BHKD.shape[-2]), (0, 1))
    context = softmax_attention(query_BHQD, key, value, scaling=scaling, bias=bias, dropout=dropout)
    return context[..., :width]
