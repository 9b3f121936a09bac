"""What a person sees of a run: a bar with the live figures, and a line for each evaluation."""

from __future__ import annotations

import math
import sys
import time
from datetime import timedelta
from typing import Any

from transformers import TrainerCallback

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
    """A bar on a terminal, lines elsewhere; speaks on the first process alone."""

    def __init__(self, *, words: bool, unit: str, per_step: int, stream: Any = None) -> None:
        from rich.console import Console

        self._words, self._unit, self._per_step = words, unit, per_step
        self._console = Console(file=stream or sys.stderr, highlight=False, markup=False, soft_wrap=True)
        self._live: Any = None
        self._bar: Any = None
        self._task: Any = None
        self._began, self._first = 0.0, 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._began, self._first = time.monotonic(), state.global_step
        if not state.is_world_process_zero:
            return
        if state.global_step:
            self._console.print(f"going on from step {state.global_step}")
        if self._console.is_terminal:
            from rich.live import Live
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

            self._bar = Progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._task = self._bar.add_task("", total=state.max_steps, completed=state.global_step)
            self._live = Live(self._bar, console=self._console, transient=True)
            self._live.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not logs or "loss" not in logs:
            return
        done = (state.global_step - self._first) * self._per_step
        speed = f"{done / max(1e-9, time.monotonic() - self._began):,.0f} {self._unit}/s"
        pace = (time.monotonic() - self._began) / max(1, state.global_step - self._first)
        left = timedelta(seconds=round(pace * (state.max_steps - state.global_step)))
        text = f"{describe(logs, self._words)}  rate {logs.get('learning_rate', 0):.2g}  {speed}"
        if self._live is not None:
            from rich.console import Group
            from rich.text import Text

            # Below the bar: beside it they would leave it no room.
            self._live.update(Group(self._bar, Text(text)))
        else:
            self._console.print(f"step {state.global_step}/{state.max_steps}  {text}  {left} left")

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and metrics and not state.global_step >= state.max_steps:
            self._console.print(f"step {state.global_step}: {validation_line(metrics)}")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.close()

    def close(self) -> None:
        """Also after an error, which the Trainer does not tell its callbacks of."""
        if self._live is not None:
            self._live.stop()
            self._bar = self._live = None


def validation_line(metrics: dict[str, Any]) -> str:
    if "eval_int8" in metrics:
        return f"against the original {metrics['eval_float']:.4g}, in simulated INT8 {metrics['eval_int8']:.4g}"
    if "eval_perplexity" in metrics:
        return f"validation perplexity {metrics['eval_perplexity']:.4g}"
    return f"validation accuracy {metrics['eval_accuracy']:.2%}, loss {metrics['eval_nll']:.3f}"
