"""Damaged folders that `export` wrote, read by `bench` and by `OnnxModel`."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from tests.fuzz import mutations
from tests.fuzz.case import Expected, Subject, damage
from tests.fuzz.model_folders import no_file
from tests.fuzz.subjects import EMBEDDED, EXPORTED

REFUSED, SAME, ANY = Expected.REFUSED, Expected.SAME, Expected.ANY


def files(place: Path) -> list[Path]:
    return sorted(path for path in (place / "exported").rglob("*") if path.is_file())


def register(subject: Subject) -> None:
    @damage(subject, "bytes of the graph", ANY)
    def _graph(place: Path, draw: random.Random) -> None:
        mutations.damage_bytes(place / "exported" / "model.onnx", draw)

    @damage(subject, "the graph cut short", REFUSED)
    def _cut(place: Path, draw: random.Random) -> None:
        path = place / "exported" / "model.onnx"
        path.write_bytes(mutations.truncate(path.read_bytes(), draw))

    @damage(subject, "bytes beside the graph", ANY)
    def _bytes(place: Path, draw: random.Random) -> None:
        mutations.damage_bytes(draw.choice([path for path in files(place) if path.suffix != ".onnx"]), draw)

    @damage(subject, "values beside the graph", ANY)
    def _values(place: Path, draw: random.Random) -> None:
        mutations.damage_json(draw.choice([path for path in files(place) if path.suffix == ".json"]), draw)

    @damage(subject, "a file missing", ANY)
    def _missing(place: Path, draw: random.Random) -> None:
        draw.choice(files(place)).unlink()

    @damage(subject, "a file that is no file", ANY)
    def _no_file(place: Path, draw: random.Random) -> None:
        no_file(draw.choice(files(place)), draw)

    @damage(subject, "a file of another place", ANY)
    def _swapped(place: Path, draw: random.Random) -> None:
        one, two = draw.sample(files(place), 2)
        shutil.copyfile(one, two)


for _subject in (EXPORTED, EMBEDDED):
    register(_subject)
