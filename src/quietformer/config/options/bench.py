"""Options of `bench`."""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import Field, model_validator

from quietformer.config.options.base import Flag, Names, Options
from quietformer.config.options.export import RuntimeChoice
from quietformer.errors import SpecError

MOST = 1_000_000
"""No batch has so many tokens; a slip of the keyboard may."""


class BenchOptions(Options):
    """What `bench` can be told."""

    title = "bench"
    shapes: Annotated[Names, Flag("BxL,...")] = Field(
        default=("1x16", "1x128", "8x128", "32x128"),
        validate_default=True,
        description="Batch and length in tokens, e.g. 1x16,8x128; images and audio take the batch alone, e.g. 1,8.",
    )
    runtime: RuntimeChoice | None = Field(
        default=None, description="Measure onnxruntime, openvino or both; what is in FOLDER and installed by default."
    )
    threads: int | None = Field(default=None, ge=1, le=1024, description="Threads of each runtime; all by default.")
    seconds: float = Field(default=4.0, gt=0, description="Seconds for each shape; slow models get fewer turns.")
    memory: bool = Field(default=True, description="Measure memory, each model in a process of its own.")

    def sizes(self) -> list[tuple[int, int | None]]:
        """Batch and length of each shape; no length where none is named."""
        found = []
        for text in self.shapes:
            match = re.fullmatch(r"([0-9]{1,6})(?:x([0-9]{1,6}))?", text.strip(), re.ASCII)
            batch, length = (int(match[1]), match[2] and int(match[2])) if match else (0, None)
            if batch < 1 or length == 0 or batch * (length or 1) > MOST:
                raise SpecError(f"--shapes takes BATCHxLENGTH, both at least 1, e.g. 1x16,8x128, got {text!r}")
            found.append((batch, length or None))
        return found

    @model_validator(mode="after")
    def _readable(self) -> Self:
        self.sizes()
        return self
