"""What a person sees of a run: how far it is, and a line for each log and each evaluation."""

from __future__ import annotations

import math
import time
from datetime import timedelta
from typing import Any

from transformers import TrainerCallback

from quietformer.progress import Progress

LIVE = (("outliers/ffn_infinity_norm", "FFN max", "{:.1f}"), ("outliers/ffn_kurtosis", "kurtosis", "{:.0f}"),
        ("outliers/dead_rows", "dead rows", "{:.0%}"), ("outliers/gate_openness", "gates", "{:.2f}"))  # fmt: skip


def describe(logs: dict[str, Any], words: bool) -> str:
    """`loss 3.21  perplexity 24.8  FFN max 12.1  kurtosis 5`."""
    parts = [f"loss {logs['loss']:.3f}"] if "loss" in logs else []
    if words and "loss" in logs:
        parts.append(f"perplexity {math.exp(min(logs['loss'], 80)):.4g}")
    parts += [f"{name} {form.format(logs[key])}" for key, name, form in LIVE if key in logs]
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
        speed = f"{done / max(1e-9, time.monotonic() - self._began):,.0f} {self._unit}/s"
        pace = (time.monotonic() - self._began) / max(1, state.global_step - self._first)
        left = timedelta(seconds=round(pace * (state.max_steps - state.global_step)))
        rate = f"learning rate {logs.get('learning_rate', 0):.2g}"
        told = f"{describe(logs, self._words)}  {rate}  {speed}  {left} left"
        self._progress.say(f"step {state.global_step}/{state.max_steps}  {told}")

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and metrics and not state.global_step >= state.max_steps:
            self._progress.say(f"step {state.global_step}: {validation_line(metrics)}")


def validation_line(metrics: dict[str, Any]) -> str:
    if "eval_int8" in metrics:
        return f"against the original {metrics['eval_fp32']:.4g}, in simulated INT8 {metrics['eval_int8']:.4g}"
    if "eval_perplexity" in metrics:
        return f"validation perplexity {metrics['eval_perplexity']:.4g}"
    return f"validation accuracy {metrics['eval_accuracy']:.2%}, loss {metrics['eval_nll']:.3f}"
