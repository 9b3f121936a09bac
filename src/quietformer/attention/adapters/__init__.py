"""Attention outside transformers' attention interface, replaced by swapping classes: one file per class."""

from __future__ import annotations

import importlib
import pkgutil

from torch import nn

from quietformer.attention.adapters.class_swap import ADAPTERS, Adapter
from quietformer.attention.find_layers import AttentionLayer

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def find_swappable(model: nn.Module) -> list[tuple[Adapter, AttentionLayer]]:
    """Every layer whose class is or can be swapped, with its adapter."""
    return [(adapter, layer) for adapter in ADAPTERS for layer in adapter.find(model)]
