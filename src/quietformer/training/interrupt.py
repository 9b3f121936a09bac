"""Stopping on request: the step under way is finished and saved, so that nothing is lost."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from transformers import TrainerCallback

from quietformer.errors import QuietformerError
from quietformer.progress import Progress

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and what clusters send before they take a machine away."""


class StoppedError(QuietformerError):
    """A run that was interrupted and has saved its checkpoint."""


class StopOnSignal(TrainerCallback):
    """After a first signal, saves and stops at the end of the step; a second one ends the process as usual."""

    def __init__(self, progress: Progress) -> None:
        self.asked = False
        self._progress = progress

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.asked and state.global_step < state.max_steps:
            control.should_save = True
            control.should_training_stop = True

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Only the main thread can listen; elsewhere a signal does what it always does."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in SIGNALS}

        def stop(number: int, frame: FrameType | None) -> None:
            self.asked = True
            for known, handler in before.items():
                signal.signal(known, handler)
            self._progress.say("stopping after this step; press again to stop at once")

        for number in SIGNALS:
            signal.signal(number, stop)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
