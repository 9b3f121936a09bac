"""Callbacks for a Hugging Face Trainer: the warm-up of gamma, and outlier metrics in the log."""

# B sequences, T tokens, d features

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers import Trainer, TrainerCallback

from quietformer.analysis.inspection import Inspection
from quietformer.analysis.recorder import AttentionRecord, record
from quietformer.architectures.layout import find_blocks
from quietformer.attention.inject import advance_warmup_
from quietformer.errors import QuietformerError

INPUTS = ("input_ids", "attention_mask", "pixel_values")


class WarmupCallback(TrainerCallback):
    """Moves every normalizer's warm-up on by one for each optimizer step."""

    def on_step_end(self, args: Any, state: Any, control: Any, model: nn.Module | None = None, **kwargs: Any) -> None:
        if model is not None:
            advance_warmup_(model)


class OutlierCallback(TrainerCallback):
    """Adds infinity norm, kurtosis, dead rows and gate openness to what the Trainer logs, wherever it reports to.

    Every `every` steps the forward pass of that step is watched; the metrics join the next log. Start it with `attach_`,
    which puts it before the trackers: they would not see what is added after them.
    """

    def __init__(self, every: int = 100) -> None:
        self.every = every
        self.latest: dict[str, float] = {}
        self._inspection: Inspection | None = None
        self._watching = contextlib.ExitStack()

    def attach_(self, trainer: Trainer) -> None:
        trainer.callback_handler.callbacks.insert(0, self)

    def on_step_begin(self, args: Any, state: Any, control: Any, model: nn.Module | None = None, **kwargs: Any) -> None:
        self._watching.close()
        if model is None or state.global_step % self.every:
            return
        inspection = self._inspection = Inspection(picture_sequences=0)
        batches = 0

        def before(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            nonlocal batches
            batches += 1
            inspection.begin({name: kwargs[name] for name in INPUTS if isinstance(kwargs.get(name), Tensor)})

        def look(at: Callable[..., None], *what: Any) -> None:
            """The first micro-batch of an accumulated step is enough; a lost run is told by its loss, with more to say."""
            if batches == 1 and self._inspection is not None:
                try:
                    at(*what)
                except QuietformerError:
                    self._inspection = None

        def on_site(site: str, layer: int, x: Tensor) -> None:
            look(inspection.on_site, site, layer, x)

        def on_attention(layer: int, seen: AttentionRecord) -> None:
            look(inspection.on_heads, layer, seen)

        watches = [watch for block in find_blocks(model) for watch in block.watches() if watch.site == "ffn_output"]
        handle = model.register_forward_pre_hook(before, with_kwargs=True)
        self._watching.callback(handle.remove)
        self._watching.enter_context(record(model, on_site, on_attention, watches=watches))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._watching.close()
        if self._inspection is not None and self._inspection.sites:
            self.latest = self._summary(self._inspection)
        self._inspection = None

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._watching.close()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if logs is not None and "loss" in logs and self.latest:
            logs.update(self.latest)
            if state.log_history:
                state.log_history[-1].update(self.latest)
            self.latest = {}  # of a later step it would not be true

    @staticmethod
    def _summary(inspection: Inspection) -> dict[str, float]:
        sites = [metrics.tensor_metrics(*place) for place, metrics in inspection.sites.items()]
        kurtoses = [row.kurtosis for row in sites if row.kurtosis is not None]
        found = {"outliers/ffn_infinity_norm": max(row.infinity_norm for row in sites)}
        if kurtoses:
            found["outliers/ffn_kurtosis"] = sum(kurtoses) / len(kurtoses)
        heads = [tally.head_metrics(layer) for layer, tally in inspection.heads.items()]
        dead, gates = [row.zero_rows for row in heads], [row.gate or [] for row in heads]
        for name, rows in (("dead_rows", dead), ("gate_openness", gates)):
            values = [value for row in rows for value in row]
            if values:
                found[f"outliers/{name}"] = sum(values) / len(values)
        return found
