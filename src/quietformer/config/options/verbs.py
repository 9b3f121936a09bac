"""Options of `inspect`, `quantize`, `export` and `convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from quietformer.config.options.base import Flag, Options
from quietformer.config.options.data import CalibrationOptions, DataOptions
from quietformer.config.options.quantization import QuantizationOptions

WeightType = Literal["auto", "int8", "uint8"]


class OpeningOptions(Options):
    """How a model is opened."""

    trust_remote_code: bool = Field(default=False, description="Run code that comes with the model.")


class InspectOptions(OpeningOptions, DataOptions):
    """What `inspect` can be told."""

    title = "inspect"
    sequences: int = Field(default=64, ge=1, description="Sequences or images to run.")
    seed: int = Field(default=0, description="Chooses the passages of the built-in text.")
    interventions: bool = Field(default=True, description="Set outliers to zero and measure what the model loses.")


class SimulationOptions(CalibrationOptions, QuantizationOptions):
    """How to quantize, and on which data."""


class QuantizeOptions(OpeningOptions, SimulationOptions):
    """What `quantize` can be told."""

    title = "quantize"
    seeds: int = Field(default=3, ge=1, description="How many times to calibrate, each time on other batches.")
    search: bool = Field(default=False, description="Try all range estimators of activations and take the best.")
    sensitivity: bool = Field(
        default=False, description="Also measure each tensor quantized alone, and all but each (slow)."
    )
    out: Annotated[Path | None, Flag("DIR")] = Field(
        default=None, description="Save the quantized model, for load and export."
    )
    overwrite: bool = Field(default=False, description="Replace a model that is already in DIR.")


class OnnxOptions(Options):
    """What is written as ONNX, and how it is timed."""

    weight_type: WeightType = Field(
        default="auto",
        description="How weights are stored: uint8 is exact everywhere, int8 is faster; auto takes int8 if nothing changes.",
    )
    keep_fp32: bool = Field(default=False, description="Also keep the fp32 ONNX model.")
    timed: bool = Field(default=True, description="Measure latencies.")
    threads: int | None = Field(default=None, ge=1, description="Threads for the latencies; all by default.")


class ExportOptions(OpeningOptions, OnnxOptions, SimulationOptions):
    """What `export` can be told."""

    title = "export"
    baselines: bool = Field(
        default=False, description="Also measure what ONNX Runtime's own tools and SmoothQuant give."
    )
    overwrite: bool = Field(default=False, description="Replace what is already in OUT.")


class ConvertOptions(OpeningOptions):
    """What `convert` can be told."""

    title = "convert"
    attention: Annotated[str, Flag("SPEC")] = Field(
        default="", description="A normalizer, e.g. 'clipped_softmax(alpha=4)'."
    )
    gate: Annotated[str, Flag("SPEC")] = Field(
        default="", description="A gate, e.g. 'linear(pi_init=0.25)', or 'none'."
    )
    patch_norm: bool = Field(default=False, description="Add LayerNorm after the patch embedding (vision models).")
    seed: int = Field(default=0, description="Draws the weights of new gates.")
    overwrite: bool = Field(default=False, description="Replace a model that is already in OUT.")

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.attention and not self.gate and not self.patch_norm:
            raise ValueError(
                "nothing to change: give --attention, --gate or --patch-norm ('quietformer variants' lists them)"
            )
        return self
