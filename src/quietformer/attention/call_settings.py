"""The numbers of one attention call; tensors are passed beside them as arguments."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CoreOptions:
    """Options of one call of `AttentionCore`."""

    scaling: float | None = None  # factor of the scores; None: 1 / sqrt(features per head)
    dropout: float = 0.0  # dropout probability of the weights, used in training mode only
    softcap: float | None = None  # scores become softcap * tanh(scores / softcap)
    weights: bool = True  # whether the caller wants the attention weights


@dataclass(frozen=True)
class FusedOptions:
    """Options of attention that computes the context without storing the weights."""

    scaling: float
    dropout: float = 0.0
