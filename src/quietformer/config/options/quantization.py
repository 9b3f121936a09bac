"""Options about how a model is quantized."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from quietformer.config.options.base import Flag, Options, Texts
from quietformer.config.quantization import Granularity, QuantRule, QuantSpec, estimators, parse_bits, placements


class QuantSpecOptions(Options):
    """Bits, ranges and exceptions."""

    bits: Annotated[str, Flag("WxAy")] = Field(default="w8a8", description="Bits of weights and activations, 2 to 16.")
    placement: Annotated[str, Flag("NAME")] = Field(
        default="paper",
        description="Which tensors are quantized: paper (every tensor), matmul (inputs of matrix products), linear.",
    )
    granularity: Granularity = Field(
        default="tensor",
        description="Scales of activations: one per tensor, calibrated, or one per token, found while the model runs.",
    )
    symmetric: bool = Field(
        default=False, description="Signed activations with zero point 0, as TensorRT and similar targets need."
    )
    weights: Annotated[str, Flag("ESTIMATOR")] = Field(
        default="minmax", description="Range of weights: minmax, mse, percentile."
    )
    acts: Annotated[str, Flag("ESTIMATOR")] = Field(
        default="running-minmax",
        description="Range of activations: running-minmax, minmax, current-minmax, 'percentile(q=99.999)', mse.",
    )
    per_channel: bool = Field(default=False, description="One scale per output channel of a weight.")
    keep: Annotated[Texts, Flag("PATTERN[=BITS]")] = Field(
        default=(),
        validate_default=True,
        description="Keep tensors in full precision, or give them BITS, e.g. '*.ffn_output=16'; repeatable.",
    )
    gate: bool = Field(default=False, description="Also quantize the outputs of gates.")
    head: bool = Field(default=False, description="Also quantize the head.")

    def spec(self) -> QuantSpec:
        """How to quantize, as the library takes it."""
        weight_bits, activation_bits = parse_bits(self.bits)
        return QuantSpec(
            weight_bits=weight_bits,
            activation_bits=activation_bits,
            placement=placements.read(self.placement),
            weights=estimators.read(self.weights.replace("-", "_")),
            activations=estimators.read(self.acts.replace("-", "_")),
            per_channel=self.per_channel,
            granularity=self.granularity,
            activation_symmetric=self.symmetric,
            head=self.head,
            gate=self.gate,
            rules=tuple(QuantRule.parse(text) for text in self.keep),
        )


class QuantizationOptions(QuantSpecOptions):
    """How a model is quantized, and what is done to its weights first."""

    balance: bool = Field(
        default=False, description="First rescale the channels of a post-norm model's residual stream; lossless."
    )
