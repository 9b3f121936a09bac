"""What every transform asks of a model before it touches it."""

from __future__ import annotations

from transformers import PreTrainedModel

from quietformer.attention.core import Tap
from quietformer.errors import QuietformerError


def refuse_quantized(model: PreTrainedModel, verb: str) -> None:
    """A transform moves ranges, so it comes before quantizers are calibrated for them."""
    if any(isinstance(module, Tap) for module in model.modules()):
        raise QuietformerError(f"{type(model).__name__} is quantized already; {verb} first, then quantize")
