"""The folder of a run: which recipe it belongs to, who is writing into it, and whether it is finished."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from torch import Tensor
from transformers import PreTrainedModel

from quietformer.config.recipe import Recipe
from quietformer.config.recipe_files import read_recipe, write_recipe
from quietformer.data.fingerprint_file import DATA
from quietformer.data.training_data import TOKENIZER
from quietformer.errors import QuietformerError, SpecError
from quietformer.files import check_new_place
from quietformer.models.folder_files import STALE
from quietformer.models.save import write_folder
from quietformer.results import numbers
from quietformer.results.train import TrainReport
from quietformer.training.checkpoints import clear_leftovers, whole_checkpoints

LEAVING = 3.0
"""Seconds that a process which was killed may take to release its lock; its memory goes first."""

RECIPE, REPORT, LOCK = "recipe.yaml", "figures.json", ".lock"
"""Files of a run folder; the report keeps the name that it had in the first release."""


def recipe_in(run: Path) -> Recipe | None:
    """The recipe a run was started with."""
    return read_recipe(str(run / RECIPE)) if (run / RECIPE).is_file() else None


RESUME = "choose another --out, or give no recipe to resume the run that is there"


def check_run(run: Path, recipe: Recipe, remedy: str = RESUME) -> None:
    """Whether this recipe may be run there: a new folder, an empty one, or one that holds the same run."""
    check_new_place(run)
    try:
        there = recipe_in(run)
    except SpecError as error:
        raise QuietformerError(f"{error}; remove {run} to run it anew, or choose another --out") from None
    if there is None:
        if run.is_dir() and any(entry for entry in run.iterdir() if not entry.name.startswith(".")):
            raise QuietformerError(f"{run} is there already and is not a training run; choose another --out")
        return
    if there != recipe and (whole_checkpoints(run) or (run / REPORT).is_file()):
        key, old, new = next(_differences(there.to_dict(), recipe.to_dict()))
        raise QuietformerError(f"{run} holds a run of another recipe ({key}: {old!r} there, {new!r} here); {remedy}")


def _differences(old: Any, new: Any, way: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        old, new = dict(enumerate(old)), dict(enumerate(new))
    if isinstance(old, dict) and isinstance(new, dict):
        for key in (*old, *(key for key in new if key not in old)):
            yield from _differences(old.get(key), new.get(key), f"{way}.{key}" if way else str(key))
    elif old != new:
        yield way, old, new


def start(run: Path, recipe: Recipe) -> None:
    """Make the folder this run's: its recipe in it, and nothing that a killed or failed start has left."""
    clear_leftovers(run)
    for entry in run.iterdir():
        if entry.name.startswith(".") and entry.name != LOCK:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    if recipe_in(run) != recipe:
        shutil.rmtree(run / TOKENIZER, ignore_errors=True)
        (run / DATA).unlink(missing_ok=True)
        write_recipe(run / RECIPE, recipe)


@contextlib.contextmanager
def only_writer(run: Path) -> Iterator[None]:
    """One process at a time writes into a run; the lock goes with the process, however it ends."""
    run.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(run / LOCK, timeout=LEAVING):
            yield
    except Timeout:
        raise QuietformerError(f"another process is training in {run}; wait for it, or choose another --out") from None


def check_space(run: Path, parameters: int, keep: int) -> None:
    """Whether the checkpoints will fit, to be asked before the work rather than after; those already there do not count."""
    there = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    needed = 4 * parameters * (3 * (keep + 1) + 1) - there
    free = shutil.disk_usage(run).free
    if free < needed:
        raise QuietformerError(
            f"{run} has {numbers.size(free)} of disk space left and the run needs {numbers.size(needed)} ({keep + 1} "
            "checkpoints and the model); make room, or start with a smaller training.keep"
        )


def finished_report(run: Path) -> TrainReport | None:
    """The report of a run that has ended, also one of an earlier release."""
    if not (run / REPORT).is_file() or not (run / "config.json").is_file():
        return None
    try:
        return TrainReport.read(run / REPORT)
    except QuietformerError:
        return None


def write_final_model(
    model: PreTrainedModel, run: Path, processor: Any, state_dict: dict[str, Tensor] | None = None
) -> None:
    """The trained model as files of the run folder itself, config.json last: without it nobody takes it for a model."""
    draft = run / ".model"
    shutil.rmtree(draft, ignore_errors=True)
    write_folder(model, draft, processor=processor, state_dict=state_dict)
    (run / "config.json").unlink(missing_ok=True)
    for pattern in STALE:
        for stale in run.glob(pattern):
            stale.unlink()
    files = sorted(draft.iterdir(), key=lambda path: path.name == "config.json")
    for path in files:
        os.replace(path, run / path.name)
    draft.rmdir()
