"""Every attention that is reached by swapping classes; another is one file and one entry here."""

from __future__ import annotations

from torch import nn

from quietformer.attention.layers import AttentionLayer
from quietformer.attention.mpnet import MPNET
from quietformer.attention.swap import Adapter
from quietformer.attention.timm_vit import TIMM

ADAPTERS = (TIMM, MPNET)


def find_swappable(model: nn.Module) -> list[tuple[Adapter, AttentionLayer]]:
    """Every layer whose class is, or can be, swapped, and how."""
    return [(adapter, layer) for adapter in ADAPTERS for layer in adapter.find(model)]
