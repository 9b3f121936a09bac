"""Options of `train`, and of planning a run without training it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from quietformer.config.options.base import Flag, Options, Overrides


class RecipeOptions(Options):
    """How a recipe is changed before it is used."""

    variant: Annotated[str, Flag("NAME")] = Field(default="", description="One of the recipe's variants.")
    set: Overrides = Field(default=(), description="Change a field of the recipe, e.g. training.steps=100; repeatable.")


class TrainOptions(RecipeOptions):
    """What `train` can be told."""

    title = "train"
    out: Annotated[Path | None, Flag("DIR")] = Field(
        default=None, description="The run folder; the same command again resumes the run in it."
    )


class PlanOptions(RecipeOptions):
    """What a plan of a training run can be told."""

    title = "plan"
    devices: int = Field(default=1, ge=1, description="How many devices share the work.")
    measure: bool = Field(default=True, description="Time a few steps on this machine.")
