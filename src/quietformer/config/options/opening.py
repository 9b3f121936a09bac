"""Options about opening a model."""

from __future__ import annotations

from pydantic import Field

from quietformer.config.options.base import Options


class OpeningOptions(Options):
    """How a model is opened."""

    trust_remote_code: bool = Field(default=False, description="Run code that comes with the model.")
