"""Remembering which evaluation was best, keeping its checkpoint, and stopping when nothing better comes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState


class BestWatch(TrainerCallback, ExportableState):
    """The best value of one measure and its step; kept in checkpoints, so that a resumed run judges as an undisturbed one."""

    def __init__(self, measure: str, better: str, patience: int, patient_until: int = 0) -> None:
        self.measure, self.better, self.patience = measure, better, patience
        self.patient_until = patient_until  # what comes later in the run may still help
        self.value: float | None = None
        self.step: int | None = None
        self.since = 0
        self.gave_up = False

    def state(self) -> dict[str, Any]:
        attributes = {"value": self.value, "step": self.step, "since": self.since, "gave_up": self.gave_up}
        return {
            "args": {
                "measure": self.measure,
                "better": self.better,
                "patience": self.patience,
                "patient_until": self.patient_until,
            },
            "attributes": attributes,
        }

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        value = (metrics or {}).get(self.measure)
        if value is None or state.global_step == self.step:
            return
        if self._improves(value):
            self.value, self.step, self.since = value, state.global_step, 0
            control.should_save = True  # the model it was measured on
        elif state.global_step > self.patient_until:
            self.since += 1
            if self.patience and self.since >= self.patience:
                self.gave_up = control.should_training_stop = True

    def _improves(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        if self.value is None:
            return True
        return value > self.value if self.better == "higher" else value < self.value


def gave_up_at(checkpoint: Path) -> dict[str, Any] | None:
    """What was known when the run that left this checkpoint had given up; None if it had not."""
    try:
        state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
        known: dict[str, Any] = state["stateful_callbacks"][BestWatch.__name__]["attributes"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return known if known.get("gave_up") else None
