"""Options of `export`."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from quietformer.config.options.base import Flag, Limits, Names, Options
from quietformer.config.options.limits import read_limits
from quietformer.config.options.opening import OpeningOptions
from quietformer.config.options.quantization import QuantSpecOptions
from quietformer.config.options.quantize import SimulationOptions

WeightType = Literal["auto", "int8", "uint8"]
RuntimeChoice = Literal["onnxruntime", "openvino", "both"]


class OnnxOptions(Options):
    """What is written for which runtime, and how it is timed."""

    weight_type: WeightType = Field(
        default="auto",
        description="How weights are stored: uint8 is exact everywhere, int8 is faster; auto takes int8 if nothing changes.",
    )
    runtime: RuntimeChoice | None = Field(
        default=None,
        description="Write and measure INT8 for onnxruntime, openvino or both; both if OpenVINO is installed.",
    )
    keep_fp32: bool = Field(default=False, description="Also keep the fp32 ONNX model.")
    timed: bool = Field(default=True, description="Measure latencies.")
    threads: int | None = Field(default=None, ge=1, le=1024, description="Threads for the latencies; all by default.")


class IntegerOptions(QuantSpecOptions):
    """What is written as integers, and for whom."""

    placement: Annotated[str, Flag("NAME")] = Field(
        default="matmul",
        description="Which tensors are quantized: matmul (inputs of matrix products), linear, paper (every tensor).",
    )
    per_channel: bool = Field(default=True, description="One scale per output channel of a weight.")
    per_pass: bool = Field(
        default=True, description="Where layers share a module (ALBERT), one static range for each call of it."
    )
    head: bool = Field(default=True, description="Also quantize the head, which is large in language models.")
    search: bool = Field(
        default=True,
        description="Try smoothing, weight rounding, ranges and bias correction, and keep what lowers the error; layer by layer "
        "only smoothing.",
    )
    targets: Annotated[Names, Flag("CLIENT,...", name="--for")] = Field(
        default=(),
        validate_default=True,
        description="Lay the folder out for these clients, e.g. sentence-transformers,transformers.js; by default for those "
        "that need no second copy of the graph.",
    )
    overwrite: bool = Field(default=False, description="Replace what is already in OUT.")


class ExportOptions(OpeningOptions, OnnxOptions, IntegerOptions, SimulationOptions):
    """What `export` can be told."""

    title = "export"
    search_seconds: float = Field(default=60.0, gt=0, description="No further step of the search begins after so long.")
    baselines: bool = Field(
        default=False, description="Also measure what NNCF, ONNX Runtime's own tools, torchao and SmoothQuant give."
    )
    min_quality: Limits = Field(
        default=(),
        validate_default=True,
        description="Write nothing and exit with code 3 if real INT8 is worse, e.g. cosine=0.998 or wer=0.05; repeatable.",
    )
    pooled: bool = Field(
        default=False, description="Also give sentence_embedding: pooling and normalization in the graph."
    )
    base_model: Annotated[str, Flag("HUB_ID")] = Field(
        default="", description="Hub id of the model this is made from, for the model card; MODEL if that is one."
    )
    push: Annotated[str, Flag("REPO")] = Field(default="", description="Upload OUT to this repository of the hub.")
    private: bool = Field(default=False, description="Make a new repository private.")

    def limits(self) -> dict[str, float]:
        """What `min_quality` asks for, by metric."""
        return read_limits(self.min_quality)

    @model_validator(mode="after")
    def _known_metrics(self) -> Self:
        self.limits()
        return self

    @model_validator(mode="after")
    def _private_repository(self) -> Self:
        if self.private and not self.push:
            raise ValueError("--private is about the repository that --push makes; give both")
        return self
