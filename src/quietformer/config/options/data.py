"""Options about the data a model is run on."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from quietformer.config.options.base import Flag, OptionalPath, Options


class DataOptions(Options):
    """Which text or images to run; without any, the built-in text (documentation of installed packages) or digits."""

    texts: Annotated[OptionalPath, Flag("FILE")] = Field(
        default=None, validate_default=True, description="Text file, one paragraph per line."
    )
    dataset: Annotated[str, Flag("NAME")] = Field(default="", description="Texts of a dataset (hub name or folder).")
    images: Annotated[OptionalPath, Flag("DIR")] = Field(
        default=None,
        validate_default=True,
        description="Folder of images (vision models); class folders give labels.",
    )
    length: int | None = Field(default=None, ge=3, description="Tokens per sequence; default 128, or as many as fit.")
    batch_size: int = Field(default=8, ge=1, description="Sequences or images run at once.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.texts is not None) + bool(self.dataset) + (self.images is not None) > 1:
            raise ValueError("give one of --texts, --dataset and --images")
        return self


class CalibrationOptions(DataOptions):
    """Data to calibrate on, and other data to evaluate on."""

    eval_texts: Annotated[OptionalPath, Flag("FILE")] = Field(
        default=None,
        validate_default=True,
        description="Other text file to evaluate on; by default part of the data is held out.",
    )
    sequences: int = Field(default=64, ge=2, description="Sequences or images to evaluate on.")
    calibration: int = Field(default=16, ge=1, description="Batches to calibrate on.")

    @model_validator(mode="after")
    def _text_with_text(self) -> Self:
        if self.eval_texts is not None and self.images is not None:
            raise ValueError("--eval-texts goes with text, not with --images")
        return self
