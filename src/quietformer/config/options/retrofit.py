"""Options of `retrofit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from quietformer.config.options.base import Flag, OptionalPath, Overrides, Paths, Texts
from quietformer.config.options.opening import OpeningOptions
from quietformer.config.quantization import QuantSpec, placements
from quietformer.config.recipe import Source
from quietformer.config.spec_base import Seed
from quietformer.errors import QuietformerError

BUILT_IN_TEXT = "embedded"


class RetrofitOptions(OpeningOptions):
    """What `retrofit` can be told; an option that is unset takes what suits the model."""

    title = "retrofit"
    placement: Annotated[str, Flag("NAME")] = Field(
        default="matmul",
        description="Which tensors INT8 is for: matmul (inputs of matrix products), linear, paper (every tensor).",
    )
    gate: Annotated[str, Flag("SPEC")] = Field(
        default="", description="Gate to add, open at the start: linear (default), mlp, all_heads, elementwise, none."
    )
    attention: Annotated[str, Flag("SPEC")] = Field(
        default="", description="Normalizer of attention, e.g. 'clipped_softmax(alpha=4,warmup_steps=200)'."
    )
    texts: Annotated[Texts, Flag("FILE")] = Field(
        default=(),
        validate_default=True,
        description="Text to train on, one paragraph per line, or 'embedded', the built-in text; repeatable.",
    )
    tokenizer: Annotated[str, Flag("NAME")] = Field(
        default="", description="Tokenizer to use instead of the model's own: a folder or a hub id."
    )
    dataset: Annotated[str, Flag("NAME")] = Field(default="", description="Train on the texts of a hub dataset.")
    images: Annotated[OptionalPath, Flag("DIR")] = Field(
        default=None, validate_default=True, description="Folder of images to train on; digits by default."
    )
    eval_texts: Annotated[Paths, Flag("FILE")] = Field(
        default=(),
        validate_default=True,
        description="Other text to measure on; by default part of the data is held out; repeatable.",
    )
    eval_images: Annotated[OptionalPath, Flag("DIR")] = Field(
        default=None, validate_default=True, description="Other images to measure on."
    )
    steps: int = Field(default=1000, ge=1, le=1_000_000, description="Training steps.")
    batch_size: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Texts or images per step; default 16, or 4 sequences of running text.",
    )
    length: int | None = Field(
        default=None, ge=8, le=1_000_000, description="Most tokens per sequence; default 64 or 128."
    )
    learning_rate: float = Field(default=1e-4, gt=0, description="Peak learning rate.")
    gate_factor: float = Field(
        default=10.0, ge=0.01, description="Learning rate of gates, as a multiple of the others'."
    )
    penalty: float | None = Field(
        default=None, ge=0, description="Strength of the penalty on activations; default by the model's width, 0: none."
    )
    threshold: float | None = Field(
        default=None, ge=0, description="Activations up to this are not penalised; default from the model's own."
    )
    site: Annotated[str, Flag("TENSOR")] = Field(
        default="ffn_output", description="Which activations the penalty is on."
    )
    ranges: float | None = Field(
        default=None,
        ge=0,
        description="Strength of the penalty on wide ranges around norms; default 1 for unbalanced post-norm encoders, else 0.",
    )
    qat: float = Field(
        default=0.35, ge=0, le=1, description="Share of the run, at its end, with quantization-aware training (QAT)."
    )
    rotate: bool | None = Field(
        default=None, description="Rotate the residual stream first; default for causal models with RMSNorm."
    )
    damp: float | None = Field(
        default=None, ge=0.001, le=1, description="Scale massive units of gated FFNs by this first; 0.05 if rotated."
    )
    balance: Annotated[float | None, Flag("ALPHA")] = Field(
        default=None, ge=0, le=1, description="Alpha of channel balancing, for post-norm models; default 0.6, 0: none."
    )
    sequences: int = Field(default=256, ge=4, le=1_000_000, description="Texts or images to measure on.")
    seeds: int = Field(default=3, ge=1, le=1000, description="How many times to calibrate, each time on other batches.")
    seed: Seed = Field(default=0, description="Orders the data and draws the weights of new gates.")
    set: Overrides = Field(
        default=(),
        validate_default=True,
        description="Change a field of the recipe, e.g. teacher.hidden=2; repeatable.",
    )
    real: bool = Field(default=True, description="Also export and measure real INT8 (ONNX Runtime).")
    force: bool = Field(default=False, description="Train even if the model has no outliers or INT8 is good without.")

    @model_validator(mode="after")
    def _one_kind_of_data(self) -> Self:
        if bool(self.texts) + bool(self.dataset) + (self.images is not None) > 1:
            raise ValueError("give one of --texts, --dataset and --images")
        if self.takes_images and (self.texts or self.dataset or self.eval_texts):
            raise ValueError("give text or images, not both")
        return self

    @property
    def takes_images(self) -> bool | None:
        """Whether images are named, rather than text; None if neither is."""
        if self.images is not None or self.eval_images is not None:
            return True
        return False if self.texts or self.dataset or self.eval_texts else None

    def spec(self) -> QuantSpec:
        """The INT8 that is made without training."""
        return QuantSpec(placement=placements.read(self.placement), per_channel=True)

    def training_sources(self, visual: bool) -> tuple[Source, ...]:
        """The data to train on; by default the built-in text or images."""
        if self.dataset:
            return (Source(dataset=self.dataset),)
        if self.images is not None:
            return (_existing(self.images),)
        texts = self.texts or (() if visual else (BUILT_IN_TEXT,))
        found = [Source.read(text) if text == BUILT_IN_TEXT else _existing(Path(text)) for text in texts]
        return tuple(found) or (Source.read("digits"),)

    def evaluation_sources(self) -> tuple[Source, ...]:
        """Other data to measure on, if any is given."""
        images = () if self.eval_images is None else (self.eval_images,)
        return tuple(_existing(path) for path in (*self.eval_texts, *images))


def _existing(path: Path) -> Source:
    if not path.exists():
        raise QuietformerError(f"{path} does not exist; give a file or a folder")
    return Source(path=str(path))
