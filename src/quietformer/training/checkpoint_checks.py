"""Whether a checkpoint is as it was written, found out before a step is taken with it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from quietformer.errors import CheckpointError, in_one_line
from quietformer.files import digest_of, read_json
from quietformer.progress import Progress
from quietformer.training.checkpoints import DAMAGED, FILES, put_aside, step_of, whole_checkpoints
from quietformer.training.state_files import read_tree

OPTIMIZER, SCHEDULER, SCALER = "optimizer.safetensors", "scheduler.safetensors", "scaler.safetensors"

TRAINER_STATE = "trainer_state.json"

NEEDED = ("config.json", TRAINER_STATE, OPTIMIZER, SCHEDULER, "random-0.safetensors")
"""Without a list of its own a checkpoint must have these; with several processes there are more random states."""

DEEPSPEED = "latest"
"""The file by which DeepSpeed finds its own; it keeps optimizer and scheduler in another form."""


class _CallbackState(BaseModel):
    """What a callback has kept."""

    model_config = ConfigDict(strict=True)
    args: dict[str, Any]
    attributes: dict[str, Any]


class _TrainerState(BaseModel):
    """What is read of `trainer_state.json` when a run is resumed."""

    model_config = ConfigDict(strict=True, extra="allow")
    global_step: int
    max_steps: int
    epoch: float | None
    log_history: list[dict[str, float | int | str | None]]
    stateful_callbacks: dict[str, _CallbackState | list[_CallbackState]]


def usable_checkpoint(run: Path, progress: Progress) -> Path | None:
    """The newest checkpoint that is as it was written; damaged ones are put aside, unless there is no other."""
    damaged: list[tuple[Path, str]] = []
    for path in reversed(whole_checkpoints(run)):
        try:
            check_checkpoint(path)
        except CheckpointError as error:
            damaged.append((path, str(error)))
            continue
        for one, why in damaged:
            put_aside(one)
            progress.say(f"{why}; it is put aside as {one.name}{DAMAGED}, and the run resumes from {path.name}")
        return path
    if damaged:
        raise CheckpointError(f"{damaged[0][1]}; no checkpoint before it is whole: remove {run} to run it anew")
    return None


def check_checkpoint(folder: Path) -> None:
    """Every file is there and holds what was written, and it is of the step it is named after."""
    try:
        if (folder / FILES).is_file():
            _check_files(folder)
        elif not (folder / DEEPSPEED).exists():  # as earlier releases wrote them
            for name in NEEDED:
                if not (folder / name).is_file():
                    raise CheckpointError(f"{folder} is damaged: {name} is missing")
            for name in (OPTIMIZER, SCHEDULER, "random-0.safetensors"):
                read_tree(folder / name)
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error.strerror or error}") from None
    _check_trainer_state(folder)


def _check_files(folder: Path) -> None:
    listed = read_json(folder / FILES, f"{folder} has no {FILES}", CheckpointError)
    if not isinstance(listed, dict):
        raise CheckpointError(f"{folder / FILES} is damaged: it must hold a JSON object")
    for name, digest in listed.items():
        path = folder / name
        if not Path(os.path.normpath(path)).is_relative_to(folder):
            raise CheckpointError(f"{folder / FILES} is damaged: {name!r} is outside of the checkpoint")
        if not path.is_file():
            raise CheckpointError(f"{folder} is damaged: {name} is missing")
        if digest_of(path) != digest:
            raise CheckpointError(f"{folder} is damaged: {name} is not as it was written")


def _check_trainer_state(folder: Path) -> None:
    path = folder / TRAINER_STATE
    try:
        state = _TrainerState.model_validate(read_json(path, f"{folder} has no {path.name}", CheckpointError))
    except ValidationError as error:
        first = error.errors()[0]
        raise CheckpointError(f"{path} is damaged: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if state.global_step != step_of(folder):
        raise CheckpointError(f"{path} is of step {state.global_step}, and its folder is named after another")


# ---- states, against what they are loaded into


def check_optimizer_state(state: Any, optimizer: torch.optim.Optimizer, path: Path) -> None:
    """Shapes, types and finiteness: fused kernels read and write past the end of a tensor that is too short."""
    own = optimizer.state_dict()
    if not isinstance(state, dict) or set(state) != set(own):
        raise _unfit(path, "it is no state of an optimizer")
    sizes = [len(group["params"]) for group in own["param_groups"]]
    groups = state["param_groups"]
    if (
        not isinstance(groups, list)
        or not all(isinstance(group, dict) and isinstance(group.get("params"), list) for group in groups)
        or [len(group["params"]) for group in groups] != sizes
        or not all(_same_kinds(group, known) for group, known in zip(groups, own["param_groups"], strict=True))
    ):
        raise _unfit(path, "its groups of parameters are not those of the model")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    states = state["state"]
    if not isinstance(states, dict) or not all(
        isinstance(number, int) and isinstance(kept, dict) for number, kept in states.items()
    ):
        raise _unfit(path, "it has no state for each parameter")
    if set(states) - set(range(len(parameters))):
        raise _unfit(path, "it has states of parameters that the model has not")
    for number, kept in states.items():
        for name, value in kept.items():
            _check_tensor(value, parameters[number], f"{name} of parameter {number}", path)


def _check_tensor(value: Any, parameter: Tensor, name: str, path: Path) -> None:
    """The shape of the parameter, or fewer dimensions: a step, or the factors of a matrix."""
    if not isinstance(value, Tensor):
        return
    # torch's Adafactor keeps the factors of a matrix with all its dimensions, all but one or two of size 1.
    factor = name.startswith(("row_var", "col_var")) and value.dim() == parameter.dim()
    if (
        value.shape != parameter.shape
        and not (factor and all(own in (1, known) for own, known in zip(value.shape, parameter.shape, strict=True)))
        and value.dim() >= parameter.dim()
        and value.dim() > 0
        and value.dtype != torch.uint8
    ):
        raise _unfit(path, f"{name} has shape {tuple(value.shape)}, the parameter {tuple(parameter.shape)}")
    if value.is_floating_point() and not bool(value.isfinite().all()):
        raise _unfit(path, f"{name} is not finite")
    if value.shape == parameter.shape and not value.is_floating_point() and value.dtype != torch.uint8:
        raise _unfit(path, f"{name} holds {value.dtype} numbers")


def _same_kinds(group: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    """Settings that only one of them has are another release's of torch."""
    one, other = _kinds(group), _kinds(known)
    return "lr" in one and all(one[name] == other[name] for name in one.keys() & other.keys())


def _kinds(group: Mapping[str, Any]) -> dict[str, bool]:
    """Names of a group's settings, and which of them are numbers."""
    return {
        name: isinstance(value, (int, float, Tensor)) and not isinstance(value, bool)
        for name, value in group.items()
        if name not in ("params", "initial_lr")
    }


def check_scheduler_state(state: Any, step: int, path: Path) -> None:
    # In fp16, with a scaler, a step whose gradients overflow is skipped by the scheduler, and counted by the Trainer.
    last, least = state.get("last_epoch") if isinstance(state, dict) else None, step
    if path.with_name(SCALER).is_file():
        least = 0
    if not isinstance(last, int) or not least <= last <= step:
        raise _unfit(path, f"it is not of step {step}")


@contextlib.contextmanager
def loading(checkpoint: Path) -> Iterator[None]:
    """What torch, NumPy and Python say of a state that they do not take."""
    try:
        yield
    except (ValueError, TypeError, LookupError, RuntimeError, AttributeError, OverflowError) as error:
        raise _unfit(checkpoint, in_one_line(error, 200)) from error


def _unfit(path: Path, why: str) -> CheckpointError:
    folder = path if path.is_dir() else path.parent
    return CheckpointError(f"{path} is damaged: {why}; remove {folder} to resume from the checkpoint before it")
