"""Options of generating tokens."""

from __future__ import annotations

from typing import TypedDict

from pydantic import Field

from quietformer.config.spec_base import Seed, Spec


class GenerationOptions(Spec):
    """How the next tokens are chosen, and when to stop."""

    title = "generate"
    max_new_tokens: int = Field(
        default=64,
        ge=1,
        description="Stop after so many tokens; by default an encoder-decoder may fill its decoder's positions.",
    )
    do_sample: bool = Field(default=False, description="Draw tokens at random; else each is the most likely one.")
    temperature: float = Field(default=1.0, gt=0, description="Divides the logits: below 1 likely tokens get likelier.")
    top_p: float = Field(
        default=1.0, gt=0, le=1, description="Draw from the most likely tokens whose probabilities add up to this."
    )
    seed: Seed = Field(default=0, description="Random seed of the draws.")
    batch_size: int = Field(default=8, ge=1, description="Texts that are continued at the same time.")
    language: str | None = Field(
        default=None,
        description="What is spoken, e.g. en, for models that know several languages; else it is found out.",
    )
    sampling_rate: int | None = Field(
        default=None,
        ge=1000,
        le=1_000_000,
        description="Samples a second of sound given as arrays; else the model's own.",
    )


class GenerationFields(TypedDict, total=False):
    """The same by name, as keywords."""

    max_new_tokens: int
    do_sample: bool
    temperature: float
    top_p: float
    seed: int
    batch_size: int
    language: str | None
    sampling_rate: int | None
