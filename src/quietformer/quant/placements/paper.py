"""Every tensor, as the paper does it, and as accelerators need it that compute in integers only."""

from __future__ import annotations

from quietformer.config.quantization import PlacementSpec, placements


@placements.register("paper")
class PaperPlacement(PlacementSpec):
    """Every weight and every activation but the head and the gates."""

    attention = ("query", "key", "value", "scores", "probabilities", "context")
    everywhere = True
