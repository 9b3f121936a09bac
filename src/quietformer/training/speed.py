"""How fast this machine trains a model, from a few steps of a copy with one layer and one with two."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil  # type: ignore[import-untyped]
import torch
from transformers import PreTrainedModel

from quietformer.config.recipe import Recipe
from quietformer.errors import QuietformerError
from quietformer.progress import SILENT, Progress
from quietformer.results import numbers
from quietformer.training.footprint import autocast, example_inputs, fake_, trace
from quietformer.training.model_building import build_shape

BUDGET = 60.0
"""Seconds that measuring may take, about."""

TIMED = 3
"""Steps of each copy at most, after one that is not timed."""


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
        """By difference, as far as that is near what its share of the operations would take: the rest is noise."""
        share = self.two.passes * self.layer_flops / self.two.flops
        return min(max(self.two.passes - self.one.passes, share / 2), share * 2, self.two.passes / 2)

    def pass_seconds(self, flops: int) -> float:
        """Of a whole model that takes so many operations at the measured micro batch."""
        rest_seconds = max(self.two.passes - 2 * self.layer_seconds, 0.0)
        rest_flops = self.two.flops - 2 * self.layer_flops
        return rest_seconds + (flops - rest_flops) / self.layer_flops * self.layer_seconds

    def update_seconds(self, parameters: int) -> float:
        return self.two.update / self.two.parameters * parameters


def measure_speed(
    recipe: Recipe,
    micro: int,
    *,
    vocabulary: int | None = None,
    labels: list[str] | None = None,
    progress: Progress = SILENT,
    budget: float = BUDGET,
) -> Speed:
    """Train the two copies for a few steps at the recipe's width, length and, where time and memory allow, micro batch."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    precision = recipe.training.precision
    if device == "cpu" and precision == "fp16":
        precision = "fp32"  # Accelerate does not train in float16 on a CPU
    recipe = recipe.model_copy(update={"training": recipe.training.model_copy(update={"precision": precision})})
    shape = _Shape(recipe, vocabulary, labels)
    batch = _fitting_batch(shape, micro, device, budget)
    copies = [_Copy(shape, layers, batch, device) for layers in (1, 2)]
    begin, last = time.perf_counter(), 0.0
    what = "timing copies with one layer and with two"
    for done in range(TIMED + 1):
        # By turns, so that a machine which is slow for a while is slow for both.
        if done > 1 and time.perf_counter() - begin + last > budget:
            break
        progress.step(what, done, TIMED + 1)
        start = time.perf_counter()
        for copy in copies:
            copy.step()
        last = time.perf_counter() - start
    timings = [copy.timing() for copy in copies]
    progress.step(what, TIMED + 1, TIMED + 1)
    if timings[1].flops <= timings[0].flops:
        raise QuietformerError("two layers take no more operations than one, so the time of a layer cannot be measured")
    return Speed(batch, precision, *timings)


@dataclass(frozen=True)
class _Shape:
    """What the copies are built from."""

    recipe: Recipe
    vocabulary: int | None
    labels: list[str] | None

    def build(self, layers: int) -> PreTrainedModel:
        return build_shape(self.recipe, layers=layers, vocabulary=self.vocabulary, labels=self.labels)


def _footprint(shape: _Shape, layers: int, batch: int) -> tuple[int, int]:
    """Operations and bytes of a step of the copy."""
    with torch.device("meta"):
        model = shape.build(layers)
    fake_(model)
    checkpointing = shape.recipe.training.gradient_checkpointing
    found = trace(model, shape.recipe, batch)
    # Weights, gradients and two moments, of the other copy too; as much again as is saved for what comes and goes.
    needed = 2 * 16 * sum(p.numel() for p in model.parameters()) + 2 * found.activations(checkpointing)
    return found.flops(checkpointing), needed


def _fitting_batch(shape: _Shape, micro: int, device: str, budget: float) -> int:
    """The micro batch, or less where the memory or the time allowed is short."""
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else psutil.virtual_memory().available
    one, two = (_footprint(shape, 2, batch) for batch in (1, 2))
    if one[1] > free * 0.8:
        raise QuietformerError(
            f"even two layers need {numbers.size(one[1])} and {numbers.size(free)} are free, so no time was measured"
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


class _Copy:
    """A shrunk model with its optimizer, and how long its steps took."""

    def __init__(self, shape: _Shape, layers: int, batch: int, device: str) -> None:
        recipe = shape.recipe
        self.recipe, self.device = recipe, device
        self.flops = _footprint(shape, layers, batch)[0]
        with torch.device(device):
            self.model = shape.build(layers).train()
        if recipe.training.gradient_checkpointing:
            self.model.gradient_checkpointing_enable()
        fused = "fused" in recipe.optimizer.name or None
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=recipe.optimizer.learning_rate, fused=fused)
        self.inputs = example_inputs(self.model, recipe, batch, device)
        self.seconds: list[tuple[float, float]] = []

    def step(self) -> None:
        start = time.perf_counter()
        with autocast(self.recipe, self.device):
            loss = self.model(**self.inputs).loss
        loss.backward()
        _wait(self.device)
        middle = time.perf_counter()
        self.optimizer.step()
        self.optimizer.zero_grad()
        _wait(self.device)
        self.seconds.append((middle - start, time.perf_counter() - middle))

    def timing(self) -> Timing:
        """The fastest step: what else the machine does can only slow it. The first one is still setting up."""
        passes, updates = zip(*self.seconds[1:], strict=True)
        return Timing(min(passes), min(updates), self.flops, sum(p.numel() for p in self.model.parameters()))


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
