"""Options of `convert`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

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

    @property
    def changes_something(self) -> bool:
        """Whether anything but the format of the weights is to change."""
        return bool(self.attention or self.gate or self.patch_norm)
