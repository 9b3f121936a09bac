"""What a run will take, before it is run: parameters, work, memory a device, and time on this machine."""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace

import torch
from torch import nn
from transformers import PreTrainedModel

from quietformer.architectures.layout import find_blocks, head_modules
from quietformer.architectures.patch_norm import NORM
from quietformer.attention.find_layers import CORE
from quietformer.config.attention import AttentionSpec
from quietformer.config.recipe import Recipe
from quietformer.errors import QuietformerError, SpecError
from quietformer.progress import SILENT, Progress
from quietformer.results.plan import (
    CopySeconds,
    Memory,
    Parameters,
    PlannedBatch,
    PlannedModel,
    PlannedTime,
    PlanReport,
    Work,
)
from quietformer.training.arguments import check_trainer_fields, split_batch, steps_of
from quietformer.training.footprint import fake_, meant_for_gpu, saved_bytes, trace
from quietformer.training.model_building import build_shape
from quietformer.training.speed import Speed, measure_speed

STATES = {"8bit": 2, "muon": 8, "adamw": 8, "adam": 8, "lion": 4, "adagrad": 4, "rmsprop": 4, "sgd": 0, "adafactor": 0}
"""Bytes an optimizer keeps for a parameter at most, by the first of these that its name contains; two moments if none."""


@dataclass(frozen=True)
class DataShape:
    """What the data will bring, as far as it is known: examples for recipes that count in epochs, tokens, labels."""

    examples: int | None = None
    vocabulary: int | None = None
    labels: list[str] | None = None


def plan(
    recipe: Recipe,
    *,
    devices: int = 1,
    data: DataShape = DataShape(),
    measure: bool = True,
    progress: Progress = SILENT,
) -> PlanReport:
    """What a run will take; nothing of the model's size is allocated, fetched or read."""
    if recipe.task == "distill":
        raise SpecError("a run of task 'distill' is not planned; it says what it takes when it is run")
    check_trainer_fields(recipe.trainer)
    notes: list[str] = []
    data = replace(data, vocabulary=_vocabulary(recipe, data.vocabulary, notes))
    _note_labels(recipe, data, notes)
    training = recipe.training
    micro, times = split_batch(training.batch_size, training.micro_batch, devices)
    batch = PlannedBatch(
        devices=devices, micro_batch=micro, accumulation=times, batch_size=training.batch_size
    )  # fmt: skip
    progress.step("tracing one pass", 0, 3)
    with torch.device("meta"):
        model = build_shape(recipe, vocabulary=data.vocabulary, labels=data.labels)
    fake_(model)
    # Twice, since some of what is kept does not grow with the batch: half precision copies of weights above all.
    saved = saved_bytes(model, recipe, 1)
    found = trace(model, recipe, max(micro, 2))
    per_example = (found.activations(training.gradient_checkpointing) - saved) // (max(micro, 2) - 1)
    flops = found.flops(training.gradient_checkpointing) // max(micro, 2)
    work = _work(recipe, flops, _steps(recipe, data.examples, notes))
    speed = _measured(recipe, micro, data, progress, notes) if measure else None
    activations = Activations(saved + per_example * (micro - 1), per_example)
    return PlanReport(
        name=recipe.name,
        model=PlannedModel(
            class_name=type(model).__name__, attention=recipe.attention.label, parameters=_parameters(model)
        ),
        batch=batch,
        work=work,
        memory=_memory(model, recipe, activations, devices, notes),
        time=None if speed is None else _time(recipe, speed, model, batch, work),
        notes=notes,
    )


def _note_labels(recipe: Recipe, data: DataShape, notes: list[str]) -> None:
    given = {"num_labels", "id2label"} & recipe.model.config.keys()
    if data.labels is None and recipe.task in ("pairs", "images") and not given:
        notes.append("How many labels there are is not known before the data is read; the config's default is taken.")


def _vocabulary(recipe: Recipe, known: int | None, notes: list[str]) -> int | None:
    """The tokenizer's size where the recipe says it; a pretrained one is not fetched to ask."""
    if known is not None or recipe.task == "images" or recipe.model.pretrained or "vocab_size" in recipe.model.config:
        return known
    if not recipe.tokenizer.pretrained:
        return recipe.tokenizer.vocabulary
    notes.append("model.config gives no vocab_size and the tokenizer is not fetched; the config's default is taken.")
    return None


def _parameters(model: PreTrainedModel) -> Parameters:
    """Each parameter once, under the first part that claims it; tied ones count where they are embeddings."""
    blocks = tuple(f"{block.name}." for block in find_blocks(model))
    outside = head_modules(model)
    heads = {id(p) for module in model.modules() if id(module) in outside for p in module.parameters(recurse=False)}
    embedded = {
        id(p)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for p in module.parameters(recurse=False)
    }
    parts = dict.fromkeys(("embeddings", "blocks", "head", "other", "added"), 0)
    for name, parameter in model.named_parameters():
        if {CORE, NORM} & set(name.split(".")):
            part = "added"
        elif name.startswith(blocks):
            part = "blocks"
        elif id(parameter) in embedded or (id(parameter) not in heads and "embed" in name):
            part = "embeddings"
        else:
            part = "head" if id(parameter) in heads else "other"
        parts[part] += parameter.numel()
    return Parameters(total=sum(parts.values()), **parts)


def _steps(recipe: Recipe, examples: int | None, notes: list[str]) -> int | None:
    if not recipe.training.steps and examples is None:
        if not (recipe.data.limit and recipe.task in ("pairs", "images")):
            notes.append("The recipe counts in epochs and the size of the data is not known, so totals are left out.")
            return None
        examples = recipe.data.limit  # at most
    return steps_of(recipe, examples)


def _work(recipe: Recipe, flops_per_example: int, steps: int | None) -> Work:
    a_step = recipe.training.batch_size * (1 if recipe.task == "images" else recipe.data.length)
    flops = flops_per_example * recipe.training.batch_size
    return Work(
        unit="images" if recipe.task == "images" else "tokens",
        units_per_step=a_step,
        steps=steps,
        units=None if steps is None else a_step * steps,
        flops_per_step=flops,
        flops=None if steps is None else flops * steps,
    )


@dataclass(frozen=True)
class Activations:
    """Bytes that autograd keeps: of a micro batch, and of one more example."""

    total: int
    per_example: int


def _memory(model: PreTrainedModel, recipe: Recipe, activations: Activations, devices: int, notes: list[str]) -> Memory:
    """Bytes on one device; master weights, gradients and optimizer states are in float32, whatever the precision."""
    total = sum(p.numel() for p in model.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    buffers = sum(b.numel() * b.element_size() for b in model.buffers())
    name = recipe.optimizer.name.lower()
    state = next((size for part, size in STATES.items() if part in name), None)
    if state is None:
        notes.append(f"What optimizer {recipe.optimizer.name!r} keeps is not known; two moments are assumed.")
    shards = _shards(recipe, devices)
    parts = {
        "weights": 4 * total // shards["weights"] + buffers,
        "gradients": 4 * trained // shards["gradients"],
        "optimizer": (8 if state is None else state) * trained // shards["optimizer"],
        "activations": activations.total,
    }
    if shards["weights"] > 1:
        # A shard is not enough to compute with: a block at a time is gathered whole.
        parts["gathered_block"] = 4 * max((_size(block.module) for block in find_blocks(model)), default=total)
    elif devices > 1 and shards["gradients"] == 1:
        parts["gradient_buckets"] = 4 * trained
    notes.append("Memory leaves out what comes and goes within an operation, and what the framework itself takes.")
    if recipe.training.precision != "fp32":
        notes.append(
            f"Activations are as autocast to {recipe.training.precision} keeps them on this machine, copies of weights in "
            "half precision included."
        )
    config = model.config.to_dict()
    dropped = any(value for name, value in config.items() if "att" in name and "drop" in name)
    if dropped and not torch.cuda.is_available() and not meant_for_gpu(recipe) and recipe.attention == AttentionSpec():
        notes.append("Attention is a CPU's, which with dropout keeps every probability; a GPU's keeps less.")
    if recipe.regularizers:
        notes.append("What regularizers add is not counted.")
    return Memory(total=sum(parts.values()), activations_per_example=activations.per_example, **parts)


def _size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _shards(recipe: Recipe, devices: int) -> dict[str, int]:
    """Among how many devices each kind of tensor is divided."""
    strategy = recipe.trainer.get("fsdp") or ""
    words = " ".join(strategy) if isinstance(strategy, (list, tuple)) else str(strategy).lower()
    sharded = devices if strategy and "no_shard" not in words else 1
    return {"weights": 1 if "shard_grad_op" in words else sharded, "gradients": sharded, "optimizer": sharded}


def _measured(recipe: Recipe, micro: int, data: DataShape, progress: Progress, notes: list[str]) -> Speed | None:
    try:
        speed = measure_speed(recipe, micro, vocabulary=data.vocabulary, labels=data.labels, progress=progress)
    except QuietformerError as error:
        notes.append(f"Time was not measured: {error}.")
        return None
    if speed.precision != recipe.training.precision:
        notes.append(f"Time is of {speed.precision}: this machine does not train in {recipe.training.precision}.")
    if recipe.training.compile:
        notes.append("Time is of the model as it is, not compiled.")
    return speed


def _time(recipe: Recipe, speed: Speed, model: PreTrainedModel, batch: PlannedBatch, work: Work) -> PlannedTime:
    """An estimate: devices like this one, and nothing lost in communication between them or in reading data."""
    flops = work.flops_per_step // batch.batch_size * speed.batch
    a_pass = speed.pass_seconds(flops) * batch.micro_batch / speed.batch
    shards = _shards(recipe, batch.devices)["optimizer"]
    update = speed.update_seconds(sum(p.numel() for p in model.parameters()) // shards)
    step = a_pass * batch.accumulation + update
    return PlannedTime(
        machine=torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()} CPU",
        threads=torch.get_num_threads(),
        precision=speed.precision,
        measured_micro_batch=speed.batch,
        measured_seconds=CopySeconds(one_layer=speed.one.passes, two_layers=speed.two.passes, update=speed.two.update),
        flops_per_second=flops / speed.pass_seconds(flops),
        seconds_per_step=step,
        seconds=None if work.steps is None else step * work.steps,
    )
