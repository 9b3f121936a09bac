"""Checks that every transform makes before it changes a model."""

from __future__ import annotations

from transformers import PreTrainedModel

from quietformer.attention.core import Tap
from quietformer.errors import QuietformerError


def refuse_quantized(model: PreTrainedModel, verb: str) -> None:
    """Raise if the model is quantized: a transform changes the ranges its quantizers are calibrated for."""
    if any(isinstance(module, Tap) for module in model.modules()):
        raise QuietformerError(f"{type(model).__name__} is quantized already; {verb} first, then quantize")
