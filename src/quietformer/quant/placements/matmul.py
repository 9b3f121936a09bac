"""Inputs of matrix products, which are what INT8 makes fast; everything else stays in fp32."""

from __future__ import annotations

from quietformer.config.quantization import PlacementSpec, placements


@placements.register("matmul")
class MatmulPlacement(PlacementSpec):
    """Weights, and both inputs of every matrix product, each on the branch that goes into the product."""

    attention = ("query", "key", "value", "probabilities")
    everywhere = False
