"""Noticing that a run is lost, and saying where it broke."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from quietformer.architectures.layout import find_blocks
from quietformer.errors import QuietformerError
from quietformer.results import numbers

SMOOTHING = 0.95

SUSPICIOUS = 0.2
"""The share of the allowed rise from which on old checkpoints are not deleted."""

SETTLED = 20
"""Steps before the smoothed loss is trusted."""


class DivergenceError(QuietformerError):
    """A run that is lost: the loss is not finite, or far above what it had been."""


class LossWatch(TrainerCallback, ExportableState):
    """The smoothed loss and its best; kept in checkpoints, so that a resumed run judges as an undisturbed one."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.smoothed: float | None = None
        self.best: float | None = None
        self.best_step: int | None = None
        self.steps = 0

    def state(self) -> dict[str, Any]:
        return {
            "args": {"limit": self.limit},
            "attributes": {
                "smoothed": self.smoothed,
                "best": self.best,
                "best_step": self.best_step,
                "steps": self.steps,
            },
        }

    def exploded(self, loss: float) -> bool:
        """Take in the loss of one step; whether the smoothed one is further above its best than allowed."""
        self.steps += 1
        self.smoothed = loss if self.smoothed is None else SMOOTHING * self.smoothed + (1 - SMOOTHING) * loss
        if self.steps >= SETTLED and (self.best is None or self.smoothed <= self.best):
            self.best, self.best_step = self.smoothed, self.steps
        return self.best is not None and self.smoothed > self.best + self.limit

    @property
    def suspect_since(self) -> int | None:
        """The step the loss was best at, while it is a good way from it: a checkpoint from before may be needed."""
        if self.best is None or self.smoothed is None or self.smoothed < self.best + SUSPICIOUS * self.limit:
            return None
        return self.best_step


def broken_layer(model: nn.Module, inputs: Mapping[str, Any]) -> str:
    """Where it broke: the first weights that are not finite, else the first layer whose output is not."""
    weights = next((name for name, value in model.named_parameters() if not bool(torch.isfinite(value).all())), None)
    if weights is not None:
        return f"the weights {weights} are not finite"
    first: list[str] = []

    def see(name: str, x: Tensor) -> None:
        if not first and not bool(torch.isfinite(x).all()):
            first.append(name)

    leaves = ((name, module) for name, module in model.named_modules() if not any(True for _ in module.children()))
    _run_watched(model, inputs, leaves, see)
    return f"the first output that is not finite is that of {first[0]}" if first else "every layer's output is finite"


def loudest_layer(model: nn.Module, inputs: Mapping[str, Any]) -> str:
    """The block with the largest output, for a loss that is finite and yet lost."""
    largest: dict[str, float] = {}

    def see(name: str, x: Tensor) -> None:
        largest[name] = max(largest.get(name, 0.0), float(x.abs().max()))

    _run_watched(model, inputs, ((block.name, block.module) for block in find_blocks(model)), see)
    if not largest:
        return "no transformer block is known in this model"
    name = max(largest, key=lambda name: largest[name] if math.isfinite(largest[name]) else math.inf)
    return f"the largest activations, {numbers.rough(largest[name])}, are those of {name}"


def _run_watched(
    model: nn.Module,
    inputs: Mapping[str, Any],
    modules: Iterable[tuple[str, nn.Module]],
    see: Callable[[str, Tensor], None],
) -> None:
    """One forward pass, `see` being told every tensor that the modules give."""

    def hook_for(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            for x in output if isinstance(output, (tuple, list)) else [output]:
                if isinstance(x, Tensor):
                    see(name, x)

        return hook

    with contextlib.ExitStack() as hooks, torch.no_grad():
        for name, module in modules:
            hooks.callback(module.register_forward_hook(hook_for(name)).remove)
        model(**inputs)
