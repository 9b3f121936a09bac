"""Softmax, and softmax with a sink, through torch's fused attention, which never holds the weights.

A sink is one more key: its value is zero, and its score is its logit. Zero is what any query makes of a key of zeros; any
other logit takes one more feature, which of all keys only the sink's has, and every query at what makes its score the logit.
"""

# B batch, H heads, Q queries, K keys, D features of a head

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from quietformer.attention.masks import Causal, read_mask

FEATURES_ADDED = 8
"""Widths that are no multiple of eight make kernels fall back to slow ones."""


def softmax_attention(
    query_BHQD: Tensor,
    key_BHKD: Tensor,
    value_BHKD: Tensor,
    *,
    scaling: float,
    mask: Tensor | None = None,
    causal: Causal | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """The context (B, H, Q, D) of softmax; zero where a row sees no key."""
    if causal is not None and causal.padding_BK is None and causal.offset == 0:
        return _fused(query_BHQD, key_BHKD, value_BHKD, None, is_causal=True, dropout_p=dropout, scale=scaling)
    bias, visible = _read(mask, causal, key_BHKD)
    context = _fused(query_BHQD, key_BHKD, value_BHKD, bias, dropout_p=dropout, scale=scaling)
    return context if visible is None else context * visible.any(dim=-1, keepdim=True)


def sink_attention(
    query_BHQD: Tensor,
    key_BHKD: Tensor,
    value_BHKD: Tensor,
    logit_H: Tensor | None,
    *,
    scaling: float,
    mask: Tensor | None = None,
    causal: Causal | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """The context of softmax over the keys and a sink, whose logit is zero if none is given."""
    width = value_BHKD.shape[-1]
    pad = nn.functional.pad
    bias, _ = _read(mask, causal, key_BHKD)  # a kernel told to be causal would hide the sink too
    if bias is not None:
        bias = pad(bias.expand(*bias.shape[:-1], key_BHKD.shape[-2]), (0, 1))
    if logit_H is None:
        key, value = pad(key_BHKD, (0, 0, 0, 1)), pad(value_BHKD, (0, 0, 0, 1))
    else:
        n_batch, n_heads, _, features = key_BHKD.shape
        unit = query_BHQD.new_zeros(FEATURES_ADDED)
        unit[0] = 1 / scaling
        query_BHQD = torch.cat([query_BHQD, unit.expand(*query_BHQD.shape[:-1], FEATURES_ADDED)], -1)
        sink = pad(logit_H.to(key_BHKD.dtype).view(1, -1, 1, 1), (features, FEATURES_ADDED - 1))
        key = torch.cat([pad(key_BHKD, (0, FEATURES_ADDED)), sink.expand(n_batch, n_heads, 1, -1)], -2)
        value = pad(value_BHKD, (0, FEATURES_ADDED, 0, 1))
    return _fused(query_BHQD, key, value, bias, dropout_p=dropout, scale=scaling)[..., :width]


def _read(mask: Tensor | None, causal: Causal | None, key_BHKD: Tensor) -> tuple[Tensor | None, Tensor | None]:
    return read_mask(mask if causal is None else causal.whole(), key_BHKD.shape[-2], key_BHKD.dtype)


def _fused(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, **how: Any) -> Tensor:
    """torch's attention; the lowest bias is one that the kernel's dtype has, or a row without visible keys would be NaN."""
    if bias is not None:
        device = query.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else query.dtype
        bias = bias.clamp(min=torch.finfo(dtype).min).to(query.dtype)
    context: Tensor = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, **how)
    return context
