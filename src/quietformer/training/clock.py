"""How long a run has trained, over all of its interruptions."""

from __future__ import annotations

import time
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState


class Clock(TrainerCallback, ExportableState):
    """Seconds of training, kept in checkpoints."""

    def __init__(self) -> None:
        self.before = 0.0
        self._since: float | None = None

    @property
    def seconds(self) -> float:
        return self.before + (0.0 if self._since is None else time.monotonic() - self._since)

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"before": self.seconds}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._since = time.monotonic()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.before, self._since = self.seconds, None
