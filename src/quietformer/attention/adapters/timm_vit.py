"""timm's vision transformers."""

# B batch, N tokens, C features

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quietformer.attention.adapters.class_swap import ADAPTERS, Adapter, core_of
from quietformer.attention.call_settings import CoreOptions
from quietformer.config.attention import HeadGeometry


def _geometry(module: Any) -> HeadGeometry:
    return HeadGeometry(module.num_heads, module.qkv.in_features, module.head_dim)


def _forward(self: Any, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
    n_batch, n_tokens, _ = x.shape
    qkv = self.qkv(x).reshape(n_batch, n_tokens, 3, self.num_heads, self.head_dim)
    query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    if is_causal:
        causal = x.new_ones(n_tokens, n_tokens, dtype=torch.bool).tril()
        attn_mask = causal if attn_mask is None else causal & attn_mask
    query, key = self.q_norm(query), self.k_norm(key)
    options = CoreOptions(scaling=self.scale, dropout=self.attn_drop.p, weights=False)
    with core_of(self, x) as core:
        context, _ = core(query, key, value, attn_mask, options=options)
    context = self.norm(context.flatten(2))
    if self.gate is not None:  # timm's own gate, which some of its models have
        context = context * self.gate(x).sigmoid()
    output: Tensor = self.proj_drop(self.proj(context))
    return output


TIMM = Adapter("timm.layers", "Attention", "QuietTimmAttention", _forward, _geometry, bare=True)
ADAPTERS.append(TIMM)
