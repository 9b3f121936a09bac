"""Options about how a model is quantized."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, field_validator

from quietformer.config.options.base import Flag, Options, Texts
from quietformer.config.quantization import (
    Granularity,
    KVCache,
    QuantRule,
    QuantSpec,
    estimators,
    parse_bits,
    placements,
)

AUTO = "auto"
"""The prefix that is found on calibration data."""


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
    kv_cache: KVCache | None = Field(
        default=None,
        description="Quantize keys and values as a cache holds them, with scales per tensor, per token, or per channel.",
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
    per_pass: bool = Field(
        default=False, description="Where layers share a module (ALBERT), one static range for each call of it."
    )
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
            per_pass=self.per_pass,
            granularity=self.granularity,
            activation_symmetric=self.symmetric,
            kv_cache=self.kv_cache,
            head=self.head,
            gate=self.gate,
            rules=tuple(QuantRule.parse(text) for text in self.keep),
        )


class QuantizationOptions(QuantSpecOptions):
    """How a model is quantized, and what is done to its weights first."""

    balance: bool = Field(
        default=False, description="First rescale the channels of a post-norm model's residual stream; lossless."
    )
    prefix: Annotated[str, Flag("auto|IDS")] = Field(
        default="",
        description="First put tokens in front of every sequence of a causal model, as constant keys and values: their ids, "
        "e.g. 1,198, or auto to find them.",
    )

    @field_validator("prefix")
    @classmethod
    def _readable(cls, text: str) -> str:
        if text not in ("", AUTO) and not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", text):
            raise ValueError("give auto, or ids of tokens such as 1,198")
        return text

    def prefix_tokens(self) -> tuple[int, ...]:
        """The ids that were given; none where they are to be found."""
        return () if self.prefix in ("", AUTO) else tuple(map(int, self.prefix.split(",")))
