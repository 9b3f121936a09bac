"""What a person sees of a run: how far it is, and a line for each log and each evaluation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from transformers import TrainerCallback

from quietformer.progress import Progress
from quietformer.results import numbers

LIVE: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("outliers/ffn_infinity_norm", "FFN max", numbers.one_place),
    ("outliers/ffn_kurtosis", "kurtosis", numbers.whole),
    ("outliers/dead_rows", "dead rows", lambda share: numbers.percent(share, 0)),
    ("outliers/gate_openness", "gates", numbers.two_places),
)
"""What is logged of outliers, what it is called, and how it is written."""


def describe(logs: dict[str, Any], words: bool) -> str:
    """`loss 3.21  perplexity 24.8  FFN max 12.1  kurtosis 5`."""
    parts = [f"loss {numbers.logged_loss(logs['loss'])}"] if "loss" in logs else []
    if words and "loss" in logs:
        parts.append(f"perplexity {numbers.significant(math.exp(min(logs['loss'], 80)))}")
    parts += [f"{name} {shown(logs[key])}" for key, name, shown in LIVE if key in logs]
    return "  ".join(parts)


class ProgressCallback(TrainerCallback):
    """Tells a `Progress` how far the run is; only the first process speaks."""

    def __init__(self, progress: Progress, *, words: bool, unit: str, per_step: int) -> None:
        self._progress, self._words, self._unit, self._per_step = progress, words, unit, per_step
        self._began, self._first = 0.0, 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._began, self._first = time.monotonic(), state.global_step
        if state.is_world_process_zero and state.global_step:
            self._progress.say(f"resuming from step {state.global_step}")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self._progress.step("training", state.global_step, state.max_steps)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not logs or "loss" not in logs:
            return
        done = (state.global_step - self._first) * self._per_step
        speed = f"{numbers.whole(done / max(1e-9, time.monotonic() - self._began))} {self._unit}/s"
        pace = (time.monotonic() - self._began) / max(1, state.global_step - self._first)
        left = timedelta(seconds=round(pace * (state.max_steps - state.global_step)))
        rate = f"learning rate {numbers.two_digits(logs.get('learning_rate', 0))}"
        told = f"{describe(logs, self._words)}  {rate}  {speed}  {left} left"
        self._progress.say(f"step {state.global_step}/{state.max_steps}  {told}")

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and metrics and not state.global_step >= state.max_steps:
            self._progress.say(f"step {state.global_step}: {validation_line(metrics)}")


def validation_line(metrics: dict[str, Any]) -> str:
    if "eval_int8" in metrics:
        fp32, int8 = (numbers.significant(metrics[f"eval_{name}"]) for name in ("fp32", "int8"))
        return f"against the original {fp32}, in simulated INT8 {int8}"
    if "eval_perplexity" in metrics:
        return f"validation perplexity {numbers.significant(metrics['eval_perplexity'])}"
    accuracy, loss = numbers.percent(metrics["eval_accuracy"], 2), numbers.logged_loss(metrics["eval_nll"])
    return f"validation accuracy {accuracy}, loss {loss}"
