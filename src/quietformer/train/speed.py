"""How fast this machine trains a model, from a few steps of a copy with one layer and one with two."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil  # type: ignore[import-untyped]
import torch
from transformers import PreTrainedModel

from quietformer.errors import QuietformerError
from quietformer.recipe import Recipe
from quietformer.train.build import build_shape
from quietformer.train.footprint import autocast, example_inputs, fake_, trace

BUDGET = 60.0
"""Seconds that measuring may take, about."""
TIMED = 3
"""Steps at most, after one that is not timed."""


@dataclass(frozen=True)
class Timing:
    """Seconds and operations of one micro batch of a shrunk model, and of the optimizer's step after it."""

    passes: float
    update: float
    flops: int
    parameters: int


@dataclass(frozen=True)
class Speed:
    """What carries over to the whole model: time a layer by its operations, and the time of the rest."""

    batch: int
    precision: str
    one: Timing
    two: Timing

    @property
    def layer_flops(self) -> int:
        return self.two.flops - self.one.flops

    @property
    def layer_seconds(self) -> float:
        """By difference; where noise swallows it, by operations."""
        difference = self.two.passes - self.one.passes
        return difference if 0 < difference <= self.one.passes else self.two.passes * self.layer_flops / self.two.flops

    def pass_seconds(self, flops: int) -> float:
        """Of a whole model that takes so many operations at the measured micro batch."""
        rest_seconds = max(self.two.passes - 2 * self.layer_seconds, 0.0)
        rest_flops = self.two.flops - 2 * self.layer_flops
        return rest_seconds + (flops - rest_flops) / self.layer_flops * self.layer_seconds

    def update_seconds(self, parameters: int) -> float:
        return self.two.update / self.two.parameters * parameters


def measure(
    recipe: Recipe,
    micro: int,
    *,
    vocabulary: int | None = None,
    labels: list[str] | None = None,
    progress: Callable[[str, int, int], None] = lambda *_: None,
    budget: float = BUDGET,
) -> Speed:
    """Train the two copies for a few steps at the recipe's width, length and, where time and memory allow, micro batch."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    precision = recipe.training.precision
    if device == "cpu" and precision == "fp16":
        precision = "fp32"  # Accelerate does not train in float16 on a CPU
    recipe = recipe.model_copy(update={"training": recipe.training.model_copy(update={"precision": precision})})
    given: dict[str, Any] = {"vocabulary": vocabulary, "labels": labels}
    batch = _fitting_batch(recipe, micro, given, device, budget)
    timings = []
    for layers in (1, 2):
        progress(f"timing a copy with {layers} layer{'s' * (layers > 1)}", layers - 1, 2)
        flops = _footprint(recipe, layers, given, batch)[0]
        with torch.device(device):
            model = build_shape(recipe, layers=layers, **given)
        passes, update = _time(model, recipe, batch, device, budget / 2)
        timings.append(Timing(passes, update, flops, sum(p.numel() for p in model.parameters())))
        del model
    progress("timing", 2, 2)
    if timings[1].flops <= timings[0].flops:
        raise QuietformerError("two layers take no more operations than one, so the time of a layer cannot be measured")
    return Speed(batch, precision, *timings)


def _footprint(recipe: Recipe, layers: int, given: dict[str, Any], batch: int) -> tuple[int, int]:
    """Operations and bytes of a step of the copy."""
    with torch.device("meta"):
        model = build_shape(recipe, layers=layers, **given)
    fake_(model)
    checkpointing = recipe.training.gradient_checkpointing
    found = trace(model, recipe, batch)
    # Weights, gradients and two moments, and as much again as is saved for what comes and goes.
    needed = 16 * sum(p.numel() for p in model.parameters()) + 2 * found.activations(checkpointing)
    return found.flops(checkpointing), needed


def _fitting_batch(recipe: Recipe, micro: int, given: dict[str, Any], device: str, budget: float) -> int:
    """The micro batch, or less where the memory or the time allowed is short."""
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else psutil.virtual_memory().available
    one, two = (_footprint(recipe, 2, given, batch) for batch in (1, 2))
    if one[1] > free * 0.8:
        raise QuietformerError(
            f"even two layers need {one[1] / 1e9:.1f} GB and {free / 1e9:.1f} are free, so no time was measured"
        )
    by_memory = 1 + int((free * 0.8 - one[1]) // max(two[1] - one[1], 1))
    # Half the rate of a bare product is a fair guess; both copies, an untimed and at least one timed step each.
    by_time = int(_product_rate(device) * 0.5 * budget / 4 // one[0])
    return max(1, min(micro, by_memory, by_time))


def _product_rate(device: str) -> float:
    """Operations a second of a plain matrix product."""
    n = 1024
    a = torch.ones(n, n, device=device)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        float((a @ a)[0, 0])  # reading a number waits for a GPU
        seconds.append(time.perf_counter() - start)
    return float(2 * n**3 / min(seconds))


def _time(model: PreTrainedModel, recipe: Recipe, batch: int, device: str, budget: float) -> tuple[float, float]:
    """Median seconds of forward and backward, and of the optimizer's step."""
    model.train()
    if recipe.training.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.optimizer.learning_rate, fused="fused" in recipe.optimizer.name or None
    )
    inputs = example_inputs(model, recipe, batch, device)
    passes: list[float] = []
    updates: list[float] = []
    begin = time.perf_counter()
    while len(passes) <= TIMED and (len(passes) < 2 or time.perf_counter() - begin + passes[-1] < budget):
        start = time.perf_counter()
        with autocast(recipe, device):
            loss = model(**inputs).loss
        loss.backward()
        _wait(device)
        middle = time.perf_counter()
        optimizer.step()
        optimizer.zero_grad()
        _wait(device)
        passes.append(middle - start)
        updates.append(time.perf_counter() - middle)
    return statistics.median(passes[1:]), statistics.median(updates[1:])


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
