"""What a Hugging Face Trainer has to be told about."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import TrainerCallback

from quietformer.attention.inject import advance_warmup_


class WarmupCallback(TrainerCallback):
    """Moves every normalizer's warm-up on by one for each optimizer step."""

    def on_step_end(self, args: Any, state: Any, control: Any, model: nn.Module | None = None, **kwargs: Any) -> None:
        if model is not None:
            advance_warmup_(model)
