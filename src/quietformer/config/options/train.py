"""Options of `train`, and of planning a run without training it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from quietformer.config.options.base import Flag, OptionalPath, Options, Overrides


class RecipeOptions(Options):
    """How a recipe is changed before it is used."""

    variant: Annotated[str, Flag("NAME")] = Field(default="", description="One of the recipe's variants.")
    set: Overrides = Field(
        default=(),
        validate_default=True,
        description="Change a field of the recipe, e.g. training.steps=100; repeatable.",
    )


class TrainOptions(RecipeOptions):
    """What `train` can be told."""

    title = "train"
    out: Annotated[OptionalPath, Flag("DIR")] = Field(
        default=None,
        validate_default=True,
        description="The run folder; the same command again resumes the run in it.",
    )


class PlanOptions(RecipeOptions):
    """What a plan of a training run can be told."""

    title = "plan"
    devices: int = Field(default=1, ge=1, le=100_000, description="With --plan: how many devices share the work.")
    measure: bool = Field(default=True, description="With --plan: time a few steps on this machine.")
