"""A recipe in the Trainer's terms."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, TrainingArguments

from quietformer.architectures.layout import find_blocks
from quietformer.config.optimization import MUON
from quietformer.config.recipe import Recipe
from quietformer.config.spec_base import nearest
from quietformer.errors import SpecError, in_one_line
from quietformer.training.checkpoints import FOLDER

OURS = {
    "output_dir": "--out", "max_steps": "training.steps", "num_train_epochs": "training.epochs",
    "per_device_train_batch_size": "training.batch_size and training.micro_batch", "learning_rate": "optimizer.learning_rate",
    "gradient_accumulation_steps": "training.micro_batch", "weight_decay": "optimizer.weight_decay",
    "lr_scheduler_type": "schedule.shape", "warmup_steps": "schedule.warmup_steps", "seed": "seed", "bf16": "training.precision",
    "fp16": "training.precision", "logging_steps": "training.log_every", "eval_steps": "training.evaluate_every",
    "save_steps": "training.save_every", "save_total_limit": "training.keep", "optim": "optimizer.name",
    "max_grad_norm": "optimizer.max_grad_norm", "gradient_checkpointing": "training.gradient_checkpointing",
    "torch_compile": "training.compile", "remove_unused_columns": "nothing", "resume_from_checkpoint": "the same --out",
    "label_smoothing_factor": "augment.label_smoothing", "adam_beta1": "optimizer.betas", "adam_beta2": "optimizer.betas",
    "adam_epsilon": "optimizer.eps", "eval_strategy": "training.evaluate_every", "save_strategy": "training.save_every",
    "lr_scheduler_kwargs": "schedule", "warmup_ratio": "schedule.warmup_steps", "train_sampling_strategy": "data",
}  # fmt: skip
"""TrainingArguments that the recipe has a field of its own for."""

BESIDE_MUON = "adamw_torch_fused"
"""The optimizer of the parameters that Muon does not take."""

REFUSED = (
    "load_best_model_at_end", "save_only_model", "auto_find_batch_size", "average_tokens_across_devices", "push_to_hub",
    "batch_eval_metrics", "eval_do_concat_batches", "ignore_data_skip", "accelerator_config", "disable_tqdm",
    "restore_callback_states_from_checkpoint", "logging_nan_inf_filter", "prediction_loss_only", "include_for_metrics",
    "label_names", "data_seed", "dispatch_batches", "split_batches", "do_train", "do_eval", "do_predict", "log_level",
)  # fmt: skip
"""TrainingArguments that would break what a run promises: exact resuming, whole checkpoints, no network."""


def check_trainer_fields(extra: dict[str, Any]) -> None:
    """Whether the recipe's further arguments exist and are not given elsewhere."""
    known = {field.name for field in dataclasses.fields(TrainingArguments) if field.init}
    for name in extra:
        if name in OURS:
            raise SpecError(f"trainer.{name} is set by {OURS[name]} of the recipe")
        if name in REFUSED:
            raise SpecError(f"trainer.{name} does not go with exact resuming; leave it out")
        if name not in known:
            raise SpecError(f"trainer has no field {name!r}{nearest(name, known - OURS.keys())}")

    workers = extra.get("dataloader_num_workers", 0)
    if not isinstance(workers, int) or workers < 0:
        raise SpecError(f"trainer.dataloader_num_workers must be a number from 0 on, got {workers!r}")
    size = extra.get("per_device_eval_batch_size", 1)
    if not isinstance(size, int) or size < 1:
        raise SpecError(f"trainer.per_device_eval_batch_size must be a number from 1 on, got {size!r}")


def split_batch(batch_size: int, micro_batch: int, devices: int) -> tuple[int, int]:
    """How many a device takes at once, and how many times before a step: devices x micro x times = batch_size."""
    if batch_size % devices:
        raise SpecError(f"training.batch_size {batch_size} does not divide among {devices} processes")
    share = batch_size // devices
    times = -(-share // micro_batch) if micro_batch else 1
    while share % times:
        times += 1
    return share // times, times


def training_arguments(recipe: Recipe, run: Path) -> TrainingArguments:
    """Everything but what depends on the size of the data or the number of processes, which `set_sizes_` adds."""
    check_trainer_fields(recipe.trainer)
    training, optimizer = recipe.training, recipe.optimizer
    fields: dict[str, Any] = {
        "output_dir": str(run / FOLDER),
        "max_steps": 1,
        "per_device_train_batch_size": 1,
        "learning_rate": optimizer.learning_rate,
        "optim": BESIDE_MUON if optimizer.name == MUON else optimizer.name,
        "adam_beta1": optimizer.betas[0],
        "adam_beta2": optimizer.betas[1],
        "adam_epsilon": optimizer.eps,
        "weight_decay": optimizer.weight_decay,
        "max_grad_norm": optimizer.max_grad_norm,
        "bf16": training.precision == "bf16",
        "fp16": training.precision == "fp16" and torch.cuda.is_available(),
        "gradient_checkpointing": training.gradient_checkpointing,
        "torch_compile": training.compile,
        "logging_steps": training.log_every,
        "eval_strategy": "steps" if training.evaluate_every else "no",
        "eval_steps": training.evaluate_every or None,
        "save_strategy": "steps",
        "save_steps": training.save_every or 10**9,
        "seed": recipe.seed,
        "use_cpu": not torch.cuda.is_available(),
        "remove_unused_columns": False,
        "logging_nan_inf_filter": False,
        "disable_tqdm": True,
        "report_to": "none",
        "restore_callback_states_from_checkpoint": True,
        "dataloader_pin_memory": torch.cuda.is_available(),
        "accelerator_config": {"dispatch_batches": False, "split_batches": False},
        "log_level": "error",
        "ddp_find_unused_parameters": False,
    }
    try:
        return TrainingArguments(**(fields | recipe.trainer))
    except (ValueError, TypeError, ImportError) as error:
        raise SpecError(f"the Trainer does not take this recipe: {in_one_line(error)}") from error


def set_sizes_(arguments: TrainingArguments, recipe: Recipe, steps: int) -> None:
    """What is known once the data and the processes are."""
    micro, times = split_batch(recipe.training.batch_size, recipe.training.micro_batch, arguments.world_size)
    arguments.max_steps = steps
    # A run shorter than its interval of logs would say nothing.
    arguments.logging_steps = min(recipe.training.log_every, max(1, steps // 4))
    arguments.per_device_train_batch_size = micro
    arguments.per_device_eval_batch_size = recipe.trainer.get("per_device_eval_batch_size", micro)
    arguments.gradient_accumulation_steps = times


def shard_blocks_(arguments: TrainingArguments, model: PreTrainedModel) -> None:
    """With FSDP, shard block by block unless the recipe says otherwise.

    transformers' own choice also shards the embeddings apart, and then the head that is tied to them cannot be.
    """
    options = arguments.fsdp_plugin_args
    if options is not None and "transformer_cls_names_to_wrap" not in options:
        blocks = sorted({type(block.module).__name__ for block in find_blocks(model)})
        if blocks:
            options["transformer_cls_names_to_wrap"] = ",".join(blocks)


def steps_of(recipe: Recipe, examples: int | None) -> int:
    """Optimizer steps of the run."""
    if recipe.training.steps:
        return recipe.training.steps
    if examples is None:
        raise SpecError("a stream has no epochs; give training.steps")
    return max(1, round(recipe.training.epochs * examples / recipe.training.batch_size))
