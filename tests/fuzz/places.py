"""Where commands write: what is no place is told before the work, and nothing else is ever touched."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

from tests.fuzz.case import Expected, Subject, damage
from tests.fuzz.model_folders import make_socket
from tests.fuzz.subjects import INSPECT, TEXT, copied

REFUSED, ANY = Expected.REFUSED, Expected.ANY


def untouched(place: Path) -> object:
    """Every file of the inputs, whatever was written elsewhere."""
    files = [path for name in ("plain", "ours") for path in (place / name).rglob("*") if path.is_file()]
    return {str(path.relative_to(place)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


PLACES = Subject("places", copied("plain", "ours", "text.txt"), lambda place: ["variants"], untouched)

FOLDERS = {
    "convert": ["convert", "plain", "{out}", "--gate", "linear"],
    "convert, overwriting": ["convert", "plain", "{out}", "--gate", "linear", "--overwrite"],
    "quantize": ["quantize", "plain", *TEXT[:-1], "--seeds", "1", "--out", "{out}"],
    "export": ["export", "plain", "{out}", *TEXT[:-1]],
    "retrofit": ["retrofit", "plain", "{out}", *TEXT[:2]],
    "figures": ["inspect", "plain", *TEXT, *INSPECT, "--figures", "{out}"],
    "train": ["train", "small/bert", "--out", "{out}"],
    "compare": ["compare", "small/bert", "--out", "{out}"],
}  # fmt: skip
"""Commands that write a folder."""

FILES = {
    "page": ["inspect", "plain", *TEXT, "--page", "{out}.html", "--json", "out.json"],
    "json": ["inspect", "plain", *TEXT, "--page", "page.html", "--json", "{out}"],
    "card": ["inspect", "plain", *TEXT, *INSPECT, "--card", "{out}"],
    "variants": ["variants", "--json", "{out}"],
    "recipes": ["recipes", "--json", "{out}"],
    "convert": ["convert", "plain", "out", "--gate", "linear", "--json", "{out}"],
    "paper": ["paper", "--html", "{out}"],
}  # fmt: skip
"""Commands that write a file."""


def no_place(place: Path, draw: random.Random) -> str:
    """A name under which neither a file nor a folder can be made."""
    what = draw.randrange(9)
    if what == 0:
        return draw.choice(("/dev/null", "/dev/full", "/dev/null/x", "/proc/x", "/proc/self/mem/x", "/sys/x"))
    if what == 1:
        return draw.choice(("text.txt/x", "plain/config.json/x/y"))
    if what == 2:
        return draw.choice(("a" * 300, "é" * 130, "x" * 248, f"new/{'a' * 300}"))
    if what == 3:
        os.symlink("loop", place / "loop")
        return draw.choice(("loop", "loop/x"))
    if what == 4:
        os.mkfifo(place / "pipe")
        return draw.choice(("pipe", "pipe/x"))
    if what == 5:
        make_socket(place / "socket")
        return "socket"
    if what == 6:
        return draw.choice((".", "", "./.", "plain/.."))
    if what == 7:
        os.symlink("/dev/null", place / "null")
        return "null"
    os.symlink("/proc/nothing/here", place / "nowhere")
    return "nowhere"


@damage(PLACES, "folders that cannot be", REFUSED)
def _folders(place: Path, draw: random.Random) -> list[str]:
    out = no_place(place, draw)
    here = Path(out) in (Path(), Path("plain/.."))  # no place for a new folder, but one for charts
    names = [name for name in sorted(FOLDERS) if not here or name != "figures"]
    return [word.replace("{out}", out) for word in FOLDERS[draw.choice(names)]]


@damage(PLACES, "files that cannot be", REFUSED)
def _files(place: Path, draw: random.Random) -> list[str]:
    name = draw.choice(sorted(FILES))
    out = no_place(place, draw)
    if name == "page":  # the ending makes another name of it
        out = draw.choice(("no/such/x", "text.txt/x", "/dev/null/x", "/proc/x", "a" * 300))
    return [word.replace("{out}", out) for word in FILES[name]]


@damage(PLACES, "inputs as outputs", Expected.SAME)
def _inputs(place: Path, draw: random.Random) -> list[str]:
    """The input is never what is written to, by whatever name; a place inside of it is."""
    os.symlink("plain", place / "alias")
    out = draw.choice(
        ("plain", "./plain/", "alias", "ours", "plain/../plain", str((place / "plain").absolute()), "alias/.")
    )
    names = [name for name in FOLDERS if name not in ("figures", "convert, overwriting")]
    words = [word.replace("{out}", out) for word in FOLDERS[draw.choice(names)]]
    return (
        words
        if "ours" in out
        else [*words, *(["--overwrite"] if words[0] in ("convert", "quantize", "export") else [])]
    )


@damage(PLACES, "inputs as files to write", Expected.SAME)
def _input_files(place: Path, draw: random.Random) -> list[str]:
    out = draw.choice(("plain", "ours/..", "plain/"))
    return [word.replace("{out}", out) for word in FILES[draw.choice([name for name in FILES if name != "page"])]]


REPORTS = {
    "text": (["inspect", "plain", *TEXT], ("--json {}", "--card {}"), ("text.txt", "plain/../text.txt", "alias.txt")),
    "model": (
        ["quantize", "plain", *TEXT[:-1], "--seeds", "1"], ("--json {}", "--page page.html --json {}"),
        ("plain/config.json", "plain/tokenizer.json", "plain/model.safetensors"),
    ),
    "one place": (["inspect", "plain", *TEXT], ("--page {}.html --card {}.html", "--json {} --card {}"), ("new", "other")),
    "converted": (["convert", "plain", "{}", "--gate", "linear"], ("--json {}",), ("out", "./out")),
}  # fmt: skip
"""Commands, what they write, and where."""


@damage(PLACES, "reports over what is read", REFUSED)
def _reports(place: Path, draw: random.Random) -> list[str]:
    os.symlink("text.txt", place / "alias.txt")
    words, writes, names = REPORTS[draw.choice(sorted(REPORTS))]
    name = draw.choice(names)
    return [word.replace("{}", name) for word in (*words, *draw.choice(writes).split())]


@damage(PLACES, "values that are empty", REFUSED)
def _empty(place: Path, draw: random.Random) -> list[str]:
    """What a shell makes of a variable that is not set."""
    flag = draw.choice(("--texts", "--dataset", "--images", "--audio", "--tokenizer", "--page", "--json"))
    words = [flag, ""] if draw.random() < 0.5 else [f"{flag}="]
    return ["inspect", "plain", *(TEXT[2:] if flag in ("--texts", "--dataset") else TEXT), *words]
