"""What a Hugging Face Trainer has to be told about, and what it can be told."""

# B sequences, T tokens, d features

from __future__ import annotations

import contextlib
from typing import Any

from torch import Tensor, nn
from transformers import Trainer, TrainerCallback

from quietformer.analysis.metrics import sequence_figures
from quietformer.analysis.recorder import AttentionRecord, record
from quietformer.attention.inject import advance_warmup_


class WarmupCallback(TrainerCallback):
    """Moves every normalizer's warm-up on by one for each optimizer step."""

    def on_step_end(self, args: Any, state: Any, control: Any, model: nn.Module | None = None, **kwargs: Any) -> None:
        if model is not None:
            advance_warmup_(model)


class OutlierCallback(TrainerCallback):
    """Adds infinity norm, kurtosis, dead rows and gate openness to what the Trainer logs, wherever it reports to.

    Every `every` steps the forward pass of that step is watched; the figures join the next log. Start it with `attach_`,
    which puts it before the trackers: they would not see what is added after them.
    """

    def __init__(self, every: int = 100) -> None:
        self.every = every
        self.latest: dict[str, float] = {}
        self._norms: dict[int, float] = {}
        self._kurtoses: dict[int, float] = {}
        self._dead: dict[int, float] = {}
        self._gates: dict[int, float] = {}
        self._watching = contextlib.ExitStack()

    def attach_(self, trainer: Trainer) -> None:
        trainer.callback_handler.callbacks.insert(0, self)

    def on_step_begin(self, args: Any, state: Any, control: Any, model: nn.Module | None = None, **kwargs: Any) -> None:
        if model is not None and state.global_step % self.every == 0:
            for figures in (self._norms, self._kurtoses, self._dead, self._gates):
                figures.clear()
            self._watching.enter_context(record(model, self._on_site, self._on_attention, sites=("ffn_output",)))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._watching.close()
        if state.global_step % self.every == 1 or self.every == 1:
            self.latest = self._summary()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if logs is not None and "loss" in logs and self.latest:
            logs.update(self.latest)
            if state.log_history:
                state.log_history[-1].update(self.latest)

    def _on_site(self, site: str, layer: int, x: Tensor) -> None:
        if layer in self._norms:
            return  # the first micro-batch of an accumulated step is enough
        x_BN = x.reshape(len(x), -1) if x.dim() == 3 else x.reshape(1, -1)
        figures = [sequence_figures(row) for row in x_BN]
        self._norms[layer] = sum(max(abs(one.minimum), abs(one.maximum)) for one in figures) / len(figures)
        self._kurtoses[layer] = sum(one.kurtosis or 0.0 for one in figures) / len(figures)

    def _on_attention(self, layer: int, seen: AttentionRecord) -> None:
        if layer not in self._dead:
            self._dead[layer] = float((seen.probabilities_BHQK.sum(-1) == 0).float().mean())
            if seen.gate is not None:
                self._gates[layer] = float(seen.gate.float().mean())

    def _summary(self) -> dict[str, float]:
        found = {}
        if self._norms:
            found["outliers/infinity_norm"] = max(self._norms.values())
            found["outliers/kurtosis"] = sum(self._kurtoses.values()) / len(self._kurtoses)
        if self._dead:
            found["outliers/dead_rows"] = sum(self._dead.values()) / len(self._dead)
        if self._gates:
            found["outliers/gate_openness"] = sum(self._gates.values()) / len(self._gates)
        return found
