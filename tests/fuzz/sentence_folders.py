"""Damaged sentence-transformers folders: modules, pooling, length and prompts beside the model."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

from tests.fuzz import mutations
from tests.fuzz.case import Expected, Subject, damage
from tests.fuzz.model_folders import no_file
from tests.fuzz.subjects import SENTENCES, SENTENCES_CONVERTED

REFUSED, SAME, ANY = Expected.REFUSED, Expected.SAME, Expected.ANY

FILES = ("modules.json", "1_Pooling/config.json", "sentence_bert_config.json", "config_sentence_transformers.json")

ELSEWHERE = (
    "..",
    "../elsewhere",
    "/etc",
    "/proc/self",
    "./../sentences",
    "1_Pooling/../..",
    "~",
    "\\..\\x",
    "a" * 300,
    "\0",
)


def register(subject: Subject) -> None:
    @damage(subject, "bytes of its own files", ANY)
    def _bytes(place: Path, draw: random.Random) -> None:
        mutations.damage_bytes(place / "sentences" / draw.choice(FILES), draw)

    @damage(subject, "values of its own files", ANY)
    def _values(place: Path, draw: random.Random) -> None:
        mutations.damage_json(place / "sentences" / draw.choice(FILES), draw)

    @damage(subject, "one of its own files that is no file", ANY)
    def _no_file(place: Path, draw: random.Random) -> None:
        no_file(place / "sentences" / draw.choice(FILES), draw)

    @damage(subject, "modules that lead elsewhere", ANY)
    def _elsewhere(place: Path, draw: random.Random) -> None:
        path = place / "sentences" / "modules.json"
        modules = json.loads(path.read_text())
        draw.choice(modules)["path"] = draw.choice(ELSEWHERE)
        path.write_text(json.dumps(modules))

    @damage(subject, "links in its subfolders", ANY)
    def _links(place: Path, draw: random.Random) -> None:
        folder = place / "sentences" / "1_Pooling"
        what = draw.randrange(4)
        if what == 0:
            os.symlink("..", folder / "up")
        elif what == 1:
            shutil.move(folder, place / "moved")
            os.symlink(place / "moved", folder)
        elif what == 2:
            os.symlink("/dev/zero", folder / "zeros")
        else:
            os.mkfifo(folder / "pipe")

    @damage(subject, "sizes and modes of pooling", ANY)
    def _pooling(place: Path, draw: random.Random) -> None:
        path = place / "sentences" / "1_Pooling" / "config.json"
        told = json.loads(path.read_text())
        told |= draw.choice((
            {"word_embedding_dimension": draw.choice((0, -1, 31, 10**9, 1.5, "32", None, [32]))},
            {"pooling_mode": draw.choice(("cls", "x", [], ["cls", "mean"], ["cls"] * 1000, {}, 1, "CLS"))},
            {"pooling_mode_cls_token": True, "pooling_mode_lasttoken": draw.choice((True, "yes", 1))},
            {name: False for name in told if name.startswith("pooling_mode")},
            {"include_prompt": draw.choice((0, "no", None, []))},
        ))  # fmt: skip
        path.write_text(json.dumps(told))

    @damage(subject, "lengths of texts", ANY)
    def _length(place: Path, draw: random.Random) -> None:
        told = {
            "max_seq_length": draw.choice((0, -1, 1, 2, 3, 10**9, 2**63, 1.5, "16", None, True, [16])),
            "do_lower_case": False,
        }
        (place / "sentences" / "sentence_bert_config.json").write_text(json.dumps(told))


for _subject in (SENTENCES, SENTENCES_CONVERTED):
    register(_subject)
