"""timm's vision transformers: no interface to register with, so the class of each attention module is swapped.

Nothing here imports timm: a model that uses it has already done so.
"""

# B batch, N tokens, C features

from __future__ import annotations

import importlib
import sys
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from quietformer.attention.core import AttentionCore, LayerCall
from quietformer.attention.layers import CORE, AttentionLayer
from quietformer.specs import HeadGeometry


def find_timm_layers(model: nn.Module) -> list[AttentionLayer]:
    """Every standard timm attention of the model, replaced already or not."""
    if "timm.layers" not in sys.modules:
        return []
    kinds = (_timm_attention(), _quiet_class())
    return [
        AttentionLayer(name, module, HeadGeometry(module.num_heads, module.qkv.in_features, module.head_dim))
        for name, module in model.named_modules()
        if type(module) in kinds
    ]


def attach_timm_(module: nn.Module, core: AttentionCore) -> None:
    module.add_module(CORE, core)
    module.__class__ = _quiet_class()


def detach_timm_(module: nn.Module) -> None:
    module._modules.pop(CORE, None)
    module.__class__ = _timm_attention()


def _timm_attention() -> Any:
    return sys.modules["timm.layers"].Attention


@lru_cache(maxsize=1)
def _quiet_class() -> Any:
    """A subclass, so that isinstance, parameters and names stay those of timm."""

    class QuietTimmAttention(_timm_attention()):  # type: ignore[misc]
        def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
            n_batch, n_tokens, _ = x.shape
            qkv = self.qkv(x).reshape(n_batch, n_tokens, 3, self.num_heads, self.head_dim)
            query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
            if is_causal:
                causal = x.new_ones(n_tokens, n_tokens, dtype=torch.bool).tril()
                attn_mask = causal if attn_mask is None else causal & attn_mask
            core = self._modules[CORE]
            core.begin(LayerCall(inputs=x))
            try:
                context, _ = core(
                    self.q_norm(query), self.k_norm(key), value, attn_mask, scaling=self.scale, dropout=self.attn_drop.p
                )
            finally:
                core.end()
            context = self.norm(context.flatten(2))
            if self.gate is not None:  # timm's own gate, which some of its models have
                context = context * self.gate(x).sigmoid()
            output: Tensor = self.proj_drop(self.proj(context))
            return output

    QuietTimmAttention.__qualname__ = "QuietTimmAttention"  # where a pickled model looks for it, see __getattr__
    return QuietTimmAttention


def __getattr__(name: str) -> Any:
    """The class is made when it is asked for, also by a pickle in a process that has not met timm yet."""
    if name != "QuietTimmAttention":
        raise AttributeError(name)
    importlib.import_module("timm.layers")
    return _quiet_class()
