"""Inputs of linear layers; the two products of attention stay in fp32."""

from __future__ import annotations

from quietformer.config.quantization import PlacementSpec, placements


@placements.register("linear")
class LinearPlacement(PlacementSpec):
    """Weights and inputs of linear layers."""

    attention = ()
    everywhere = False
