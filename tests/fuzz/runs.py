"""Damaged run folders and study folders."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

from tests.fuzz import mutations
from tests.fuzz.case import Expected, damage
from tests.fuzz.model_folders import no_file
from tests.fuzz.originals import STOPPED
from tests.fuzz.subjects import FINISHED, KILLED, SWEPT

REFUSED, SAME, ANY = Expected.REFUSED, Expected.SAME, Expected.ANY

NEWEST = Path("killed") / "checkpoints" / f"checkpoint-{STOPPED}"

STATES = ("optimizer.safetensors", "scheduler.safetensors", "random-0.safetensors")


def some_file(folder: Path, draw: random.Random) -> Path:
    return draw.choice(sorted(path for path in folder.rglob("*") if path.is_file()))


@damage(KILLED, "bytes of a checkpoint's file", SAME)
def _bytes(place: Path, draw: random.Random) -> None:
    mutations.damage_bytes(some_file(place / NEWEST, draw), draw)


@damage(KILLED, "a checkpoint's file missing", SAME)
def _missing(place: Path, draw: random.Random) -> None:
    some_file(place / NEWEST, draw).unlink()


@damage(KILLED, "a checkpoint's file that is no file", SAME)
def _no_file(place: Path, draw: random.Random) -> None:
    no_file(some_file(place / NEWEST, draw), draw)


@damage(KILLED, "a tensor of a state", SAME)
def _tensor(place: Path, draw: random.Random) -> None:
    path = place / NEWEST / draw.choice((*STATES, "quietformer.safetensors"))
    kinds = [mutations.other_shape, mutations.renamed, mutations.removed]
    if path.name in ("optimizer.safetensors", "quietformer.safetensors"):
        kinds += [mutations.without_end, mutations.as_type, mutations.not_finite]
    draw.choice(kinds)(path, draw)


@damage(KILLED, "the tree of a state", SAME)
def _tree(place: Path, draw: random.Random) -> None:
    path = place / NEWEST / draw.choice(STATES)
    header, data = mutations.read_tensors(path)
    tree = json.loads(header["__metadata__"]["tree"])
    header["__metadata__"]["tree"] = json.dumps(mutations.mutated(tree, draw))
    mutations.write_tensors(path, header, data)


@damage(KILLED, "values of trainer_state.json", SAME)
def _state(place: Path, draw: random.Random) -> None:
    mutations.damage_json(place / NEWEST / "trainer_state.json", draw)


@damage(KILLED, "another step", SAME)
def _step(place: Path, draw: random.Random) -> None:
    path = place / NEWEST / "trainer_state.json"
    state = json.loads(path.read_text())
    state["global_step"] = draw.choice(
        (0, 1, STOPPED - 1, STOPPED + 1, 5, 6, 100, -1, float(STOPPED) + 0.5, True, str(STOPPED))
    )
    path.write_text(json.dumps(state))


@damage(KILLED, "a checkpoint under another step's name", SAME)
def _name(place: Path, draw: random.Random) -> None:
    (place / NEWEST).rename((place / NEWEST).with_name(f"checkpoint-{draw.choice((1, 3, 5, 6, 7, 10**9))}"))


@damage(KILLED, "a file of another checkpoint", SAME)
def _older(place: Path, draw: random.Random) -> None:
    path = some_file(place / NEWEST, draw)
    older = (place / NEWEST).with_name("checkpoint-2") / path.name
    shutil.copyfile(older, path)


@damage(KILLED, "no list of the checkpoint's files, and damage", SAME)
def _unlisted(place: Path, draw: random.Random) -> None:
    """As earlier releases wrote them: what can be noticed without the list is noticed."""
    (place / NEWEST / "files.json").unlink(missing_ok=True)
    draw.choice((_missing, _step, _name, _cut_tensor))(place, draw)


def _cut_tensor(place: Path, draw: random.Random) -> None:
    mutations.without_end(place / NEWEST / "optimizer.safetensors", draw)


@damage(KILLED, "every checkpoint damaged", REFUSED)
def _every(place: Path, draw: random.Random) -> None:
    for checkpoint in (place / "killed" / "checkpoints").glob("checkpoint-*"):
        path = checkpoint / draw.choice(STATES)
        path.write_bytes(mutations.truncate(path.read_bytes(), draw))


@damage(KILLED, "a file of the run", SAME)
def _run_file(place: Path, draw: random.Random) -> None:
    path = draw.choice(
        sorted(
            path
            for path in (place / "killed").rglob("*")
            if path.is_file() and "checkpoint" not in str(path) and path.name != "recipe.yaml"
        )
    )
    draw.choice((mutations.damage_bytes, no_file))(path, draw)


@damage(KILLED, "the recipe of the run", ANY)
def _recipe(place: Path, draw: random.Random) -> None:
    mutations.damage_bytes(place / "killed" / "recipe.yaml", draw)


@damage(KILLED, "a folder in a place of its own", SAME)
def _folders(place: Path, draw: random.Random) -> None:
    run = place / "killed"
    what = draw.randrange(4)
    if what == 0:
        (run / "checkpoints" / "checkpoint-99").mkdir()
    elif what == 1:
        (run / "checkpoints" / "checkpoint-99").write_text("not a folder")
    elif what == 2:
        (run / ".lock").unlink(missing_ok=True)
        (run / ".lock").mkdir()
    else:
        os.symlink("checkpoint-99", run / "checkpoints" / "checkpoint-99")


@damage(FINISHED, "bytes of the report", SAME)
def _report(place: Path, draw: random.Random) -> None:
    mutations.damage_bytes(place / "finished" / "figures.json", draw)


@damage(FINISHED, "values of the report", SAME)
def _report_values(place: Path, draw: random.Random) -> None:
    mutations.damage_json(place / "finished" / "figures.json", draw)


@damage(FINISHED, "a file that is no file", ANY)
def _finished_no_file(place: Path, draw: random.Random) -> None:
    no_file(draw.choice(sorted(path for path in (place / "finished").iterdir() if path.is_file())), draw)


@damage(SWEPT, "bytes of a report", ANY)
def _swept(place: Path, draw: random.Random) -> None:
    mutations.damage_bytes(draw.choice(reports(place)), draw)


@damage(SWEPT, "values of a report", ANY)
def _swept_values(place: Path, draw: random.Random) -> None:
    mutations.damage_json(draw.choice([path for path in reports(place) if path.suffix == ".json"]), draw)


@damage(SWEPT, "a file of the study folder", ANY)
def _swept_file(place: Path, draw: random.Random) -> None:
    files = [path for path in sorted((place / "swept").iterdir()) if path.is_file()] + reports(place)
    path = draw.choice(files)
    draw.choice((mutations.damage_bytes, no_file))(path, draw)


def reports(place: Path) -> list[Path]:
    return sorted(
        [
            *(place / "swept").glob("runs/*/trial.json"),
            *(place / "swept").glob("*.json"),
            *(place / "swept").glob("*.yaml"),
        ]
    )
