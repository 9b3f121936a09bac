"""Options of `compare`, `sweep`, `paper` and `recipes`."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from quietformer.config.options.base import Flag, Names, OptionalPath, Options, Overrides, Paths


class StudyOptions(Options):
    """Where and how the runs of a study are carried out."""

    out: Annotated[OptionalPath, Flag("DIR")] = Field(
        default=None,
        validate_default=True,
        description="The folder for everything; the study's name by default. Run again, it resumes there.",
    )
    jobs: int = Field(default=1, ge=1, le=1024, description="How many runs at a time, each in a process of its own.")
    ray: Annotated[str, Flag("ADDRESS")] = Field(
        default="", description="Run on a Ray cluster: its address, 'auto', or 'local'."
    )
    retry: bool = Field(default=False, description="Run failed runs again.")

    @model_validator(mode="after")
    def _one_kind_of_workers(self) -> Self:
        if self.ray and self.jobs > 1:
            raise ValueError("give --jobs or --ray, not both")
        return self


class CompareOptions(StudyOptions):
    """What `compare` can be told."""

    title = "compare"
    variants: Annotated[Names, Flag("A,B,...")] = Field(
        default=(), validate_default=True, description="Which variants of the recipe; all of them by default."
    )
    seeds: Annotated[int, Flag("COUNT")] = Field(
        default=2, ge=1, le=1000, description="Training runs of each variant, each with its own random seed."
    )
    set: Overrides = Field(
        default=(),
        validate_default=True,
        description="Change a field of the recipe for all variants; repeatable.",
    )
    bits: Annotated[Names, Flag("WxAy,...")] = Field(
        default=("w8a8",), validate_default=True, description="Bit widths to quantize the trained models to."
    )
    calibrations: int = Field(default=3, ge=1, le=1000, description="How often each model is calibrated.")
    sequences: int = Field(
        default=256, ge=2, le=1_000_000, description="Validation sequences or images to evaluate on."
    )
    real: bool = Field(default=True, description="Also export real INT8 and evaluate it.")
    threads: int = Field(default=1, ge=1, le=1024, description="Threads of a run; the last digits depend on it.")


class SweepOptions(StudyOptions):
    """What `sweep` can be told; what it runs is in the file."""

    title = "sweep"


class PaperOptions(Options):
    """What `paper` can be told."""

    title = "paper"
    ours: Annotated[Paths, Flag("DIR")] = Field(
        default=(),
        validate_default=True,
        description="Also show this study of `compare` or `sweep` where it belongs; repeatable.",
    )


class RecipesOptions(Options):
    """What `recipes` can be told."""

    title = "recipes"
    variant: Annotated[str, Flag("NAME")] = Field(default="", description="Show the recipe with this variant applied.")
