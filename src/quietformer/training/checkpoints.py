"""Checkpoints that are whole or not there: written aside, renamed into place, renamed away before they are deleted."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from quietformer.files import digest_of, sync

FOLDER = "checkpoints"
"""Of a run folder: holds `checkpoint-STEP` for each step, whole ones only."""

STAGING, TRASH = ".staging", ".trash"

DAMAGED = ".damaged"
"""The end of the name of a checkpoint that was put aside."""

FILES = "files.json"
"""Of a checkpoint: its files and their digests."""

_NAME = re.compile(r"^checkpoint-(\d+)$")


def whole_checkpoints(run: Path) -> list[Path]:
    """Every checkpoint of a run, oldest first; what lies in staging or trash was never finished or is going."""
    place = run / FOLDER
    if not place.is_dir():
        return []
    found = [
        (int(match[1]), path)
        for path in place.iterdir()
        if (match := _NAME.match(path.name)) and path.is_dir() and not path.is_symlink()
    ]
    return [path for _, path in sorted(found)]


def last_checkpoint(run: Path) -> Path | None:
    found = whole_checkpoints(run)
    return found[-1] if found else None


def clear_leftovers(run: Path, *, ended: bool = False) -> None:
    """What a killed process left half-written or half-deleted; damaged checkpoints as well, once the run has ended."""
    aside = (run / FOLDER).glob(f"*{DAMAGED}") if ended else ()
    for path in (run / FOLDER / STAGING, run / FOLDER / TRASH, *aside):
        shutil.rmtree(path, ignore_errors=True)


def put_aside(checkpoint: Path) -> None:
    """Give a damaged checkpoint a name under which nobody resumes from it; it goes when the run has ended."""
    aside = checkpoint.with_name(f"{checkpoint.name}{DAMAGED}")
    shutil.rmtree(aside, ignore_errors=True)
    os.rename(checkpoint, aside)


def publish(run: Path, name: str) -> Path:
    """Rename a finished checkpoint out of staging, everything in it on the disk first."""
    staged, place = run / FOLDER / STAGING / name, run / FOLDER / name
    write_list(staged)
    for path in sorted(staged.rglob("*")):
        sync(path)
    sync(staged)
    if place.exists():  # the same step again, after going back to an older checkpoint
        _discard(place)
    os.rename(staged, place)
    sync(place.parent)
    return place


def write_list(folder: Path) -> None:
    """List the files of a finished checkpoint with their digests."""
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    digests = {name: digest_of(path) for name, path in files.items()}
    (folder / FILES).write_text(json.dumps(digests, indent=1) + "\n", encoding="utf-8")


def checkpoint_before(run: Path, step: int | None) -> Path | None:
    """The newest checkpoint of a step or before it; the newest of all if no step is given."""
    found = [path for path in whole_checkpoints(run) if step is None or step_of(path) <= step]
    return found[-1] if found else None


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def keep_last(run: Path, count: int, *, also: Iterable[int | None] = ()) -> None:
    """Delete all but the newest; each leaves its place at once, so no reader meets half of one.

    `also` are steps whose checkpoint, or the newest before it, is kept besides.
    """
    spared = {checkpoint_before(run, step) for step in also if step is not None}
    for path in whole_checkpoints(run)[:-count]:
        if path not in spared:
            _discard(path)


def _discard(path: Path) -> None:
    trash = path.parent / TRASH
    trash.mkdir(exist_ok=True)
    gone = trash / path.name
    shutil.rmtree(gone, ignore_errors=True)
    os.rename(path, gone)
    shutil.rmtree(gone, ignore_errors=True)
