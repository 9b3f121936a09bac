"""Options about the data a model is run on."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from quietformer.config.options.base import Flag, OptionalPath, Options


class DataOptions(Options):
    """Which text, images or audio to run; without any, the built-in text (documentation of installed packages) or digits."""

    texts: Annotated[OptionalPath, Flag("FILE")] = Field(
        default=None, validate_default=True, description="Text file, one paragraph per line."
    )
    dataset: Annotated[str, Flag("NAME")] = Field(default="", description="Texts of a dataset (hub name or folder).")
    images: Annotated[OptionalPath, Flag("DIR")] = Field(
        default=None,
        validate_default=True,
        description="Folder of images (vision models); class folders give labels.",
    )
    audio: Annotated[OptionalPath, Flag("DIR")] = Field(
        default=None,
        validate_default=True,
        description="Folder of .wav files (speech models); .txt files of the same names are transcripts.",
    )
    tokenizer: Annotated[str, Flag("NAME")] = Field(
        default="", description="Tokenizer to use instead of the model's own: a folder or a hub id."
    )
    length: int | None = Field(
        default=None, ge=3, le=1_000_000, description="Tokens per sequence; default 128, or as many as fit."
    )
    batch_size: int = Field(
        default=8, ge=1, le=1_000_000, description="Sequences, images or windows of audio run at once."
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(map(bool, (self.texts, self.dataset, self.images, self.audio))) > 1:
            raise ValueError("give one of --texts, --dataset, --images and --audio")
        return self

    def source_words(self) -> list[str]:
        """The options that name the data, as they are typed: what every command on the same model needs."""
        named = {name: getattr(self, name) for name in ("texts", "dataset", "images", "audio", "tokenizer")}
        return DataOptions(**named).words()


class CalibrationOptions(DataOptions):
    """Data to calibrate on, and other data to evaluate on."""

    eval_texts: Annotated[OptionalPath, Flag("FILE")] = Field(
        default=None,
        validate_default=True,
        description="Other text file to evaluate on; by default part of the data is held out.",
    )
    eval_images: Annotated[OptionalPath, Flag("DIR")] = Field(
        default=None, validate_default=True, description="Other folder of images to evaluate on."
    )
    eval_audio: Annotated[OptionalPath, Flag("DIR")] = Field(
        default=None, validate_default=True, description="Other folder of .wav files to evaluate on."
    )
    sequences: int = Field(
        default=64, ge=2, le=1_000_000, description="Sequences, images or windows of audio to evaluate on."
    )
    stride: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Evaluate a causal model on all of --eval-texts, in windows of --length tokens that move by so many.",
    )
    calibration: int = Field(default=16, ge=1, le=1_000_000, description="Batches to calibrate on.")

    @model_validator(mode="after")
    def _same_kind(self) -> Self:
        given = {"texts": self.texts or self.dataset, "images": self.images, "audio": self.audio}
        asked = {"texts": self.eval_texts, "images": self.eval_images, "audio": self.eval_audio}
        for kind in asked:
            other = next((name for name in given if name != kind and (given[name] or asked[name])), None)
            if asked[kind] and other:
                raise ValueError(f"--eval-{kind} goes with --{kind}, not with {other}")
        if self.stride is not None and self.eval_texts is None:
            raise ValueError("--stride needs --eval-texts, the text to evaluate on")
        if (self.eval_audio or self.eval_images) and not (self.audio or self.images):
            kind = "audio" if self.eval_audio else "images"
            raise ValueError(f"--eval-{kind} needs --{kind} to calibrate on")
        return self
