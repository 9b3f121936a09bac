"""The data a result was measured on."""

from __future__ import annotations

from pydantic import Field

from quietformer.results.base import Record


class DataInfo(Record):
    """Which data, and how much of it; fields that do not apply are unset."""

    source: str | None = None
    sources: list[str] | None = None
    unit: str | None = Field(default=None, description="sequences, passages, pairs or images")
    sequences: int | None = Field(default=None, description="sequences or images that were run")
    tokens: int | None = None
    length: int | None = Field(default=None, description="tokens of a sequence at most")
    unknown_tokens: float | None = Field(default=None, description="share of tokens that the tokenizer does not know")
    tokens_per_word: float | None = None
    seed: int | None = None
    batch_size: int | None = None
    labelled: bool | None = None
    train: int | None = Field(default=None, description="examples to train on; None for a stream")
    validation: int | None = None
    evaluation_source: str | None = None
    evaluation: dict[str, int] | None = Field(default=None, description="examples measured on, by source")
    evaluation_sequences: int | None = None
    calibration_sequences: int | None = None
    to_choose_from: int | None = Field(default=None, description="examples that calibrations draw from")

    def adding(self, **fields: object) -> DataInfo:
        """The same with more fields."""
        return DataInfo.model_validate(self.model_dump() | fields)
