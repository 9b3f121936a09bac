"""Options of `convert`."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from quietformer.config.options.base import Flag
from quietformer.config.options.opening import OpeningOptions
from quietformer.config.spec_base import Seed


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
    seed: Seed = Field(default=0, description="Draws the weights of new gates.")
    overwrite: bool = Field(default=False, description="Replace a model that is already in OUT.")

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.attention and not self.gate and not self.patch_norm:
            raise ValueError(
                "nothing to change: give --attention, --gate or --patch-norm ('quietformer variants' lists them)"
            )
        return self
