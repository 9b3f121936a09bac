"""Options of `inspect`."""

from __future__ import annotations

from pydantic import Field

from quietformer.config.options.data import DataOptions
from quietformer.config.options.opening import OpeningOptions
from quietformer.config.spec_base import Seed


class InspectOptions(OpeningOptions, DataOptions):
    """What `inspect` can be told."""

    title = "inspect"
    sequences: int = Field(default=64, ge=1, le=1_000_000, description="Sequences or images to run.")
    seed: Seed = Field(default=0, description="Chooses the passages of the built-in text.")
    interventions: bool = Field(default=True, description="Set outliers to zero and measure what the model loses.")
