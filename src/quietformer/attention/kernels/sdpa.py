"""Softmax, and softmax with a sink, through torch's fused attention, which never stores the weights.

A sink is one extra key with a value of zero whose score is the sink's logit. For a logit of zero a key of zeros is enough. Any
other logit needs one extra feature: it is nonzero in the sink's key only, and every query holds 1 / scaling there.
"""

# B batch, H heads, Q queries, K keys, D features per head

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from quietformer.attention.call_settings import FusedOptions
from quietformer.attention.masks import HIDDEN_BELOW, AnyMask, read_mask, split_mask

FEATURES_ADDED = 8
"""Fused kernels are slow for head widths that are not a multiple of eight, so eight features are added where one is needed."""


def softmax_attention(
    query_BHQD: Tensor, key_BHKD: Tensor, value_BHKD: Tensor, mask: AnyMask, options: FusedOptions
) -> Tensor:
    """The context (B, H, Q, D) of softmax attention; zero where a row sees no key."""
    how = {"dropout_p": options.dropout, "scale": options.scaling}
    _, causal = split_mask(mask)
    if causal is not None and causal.padding_BK is None and causal.offset == 0:
        return _fused(query_BHQD, key_BHKD, value_BHKD, None, is_causal=True, **how)
    bias, visible = _read(mask, key_BHKD)
    context = _fused(query_BHQD, key_BHKD, value_BHKD, bias, **how)
    return context if visible is None else context.masked_fill(~visible.any(dim=-1, keepdim=True), 0)


def sink_attention(
    query_BHQD: Tensor,
    key_BHKD: Tensor,
    value_BHKD: Tensor,
    logit_H: Tensor | None,
    mask: AnyMask,
    options: FusedOptions,
) -> Tensor:
    """The context (B, H, Q, D) of softmax over the keys and a sink; without a logit the sink's logit is zero."""
    width, scaling = value_BHKD.shape[-1], options.scaling
    pad = nn.functional.pad
    bias, _ = _read(mask, key_BHKD)  # not is_causal=True, which would hide the sink from most queries
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
    return _fused(query_BHQD, key, value, bias, dropout_p=options.dropout, scale=scaling)[..., :width]


def _read(mask: AnyMask, key_BHKD: Tensor) -> tuple[Tensor | None, Tensor | None]:
    tensor, causal = split_mask(mask)
    return read_mask(tensor if causal is None else causal.whole(), key_BHKD.shape[-2], key_BHKD.dtype)


def _fused(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, **how: Any) -> Tensor:
    """torch's attention, with the bias in the kernel's dtype."""
    if bias is not None:
        device = query.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else query.dtype
        bias = _fitting(bias, dtype).to(query.dtype)
    context: Tensor = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, **how)
    return context


def _fitting(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """The bias with a finite minimum, since an infinite one makes rows without visible keys NaN.

    Kernels add up the scores of float16 in float32, where one of 1e5 is larger than float16's minimum takes away: there hidden
    keys are infinitely far, but in rows that see no key, whose result is not used.
    """
    if dtype != torch.float16:
        return bias.clamp(min=torch.finfo(dtype).min)
    hidden = bias <= HIDDEN_BELOW
    blind = hidden.all(dim=-1, keepdim=True)
    return bias.masked_fill(hidden, -torch.inf).masked_fill(blind, 0)
