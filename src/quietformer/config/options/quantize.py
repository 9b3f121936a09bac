"""Options of `quantize`."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from quietformer.config.options.base import Flag, OptionalPath
from quietformer.config.options.data import CalibrationOptions, DataOptions
from quietformer.config.options.opening import OpeningOptions
from quietformer.config.options.quantization import QuantizationOptions, QuantSpecOptions


class SimulationOptions(CalibrationOptions, QuantizationOptions):
    """How to quantize, and on which data."""


class QuantizeOptions(OpeningOptions, SimulationOptions):
    """What `quantize` can be told."""

    title = "quantize"
    seeds: int = Field(default=3, ge=1, le=1000, description="How many times to calibrate, each time on other batches.")
    search: bool = Field(default=False, description="Try all range estimators of activations and take the best.")
    sensitivity: bool = Field(
        default=False, description="Also measure each tensor quantized alone, and all but each (slow)."
    )
    out: Annotated[OptionalPath, Flag("DIR")] = Field(
        default=None, validate_default=True, description="Save the quantized model, for load and export."
    )
    overwrite: bool = Field(default=False, description="Replace a model that is already in DIR.")

    @model_validator(mode="after")
    def _one_way_to_ranges(self) -> Self:
        if self.search and "acts" in self.model_fields_set:
            raise ValueError("--search chooses the range of activations, which --acts names; give one of them")
        return self


class QuantizationPlanOptions(OpeningOptions, DataOptions, QuantSpecOptions):
    """What `quantize --plan` can be told: the tensors that are found depend on nothing else."""

    title = "quantize --plan"
