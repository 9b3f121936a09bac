"""Where a kept result comes from: the command that made it and the commit of the code that ran."""

from __future__ import annotations

import argparse
import json
import math
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quietformer.files import write_text

ROOT = Path(__file__).resolve().parents[1]
CODE = ("src", ":(glob)experiments/**/*.py", ":(glob)tests/families/*.py", ":(glob)tests/fuzz/*.py", "examples")
"""What decides about a result; other files may differ from the commit without changing it."""


def keep_option_(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keep", action="store_true", help="write the result beside the script, for the documents")


def keep(script: str, result: Mapping[str, Any], *, command: str = "") -> None:
    """Write a result beside the script that measured it, with the command and the commit that made it.

    `command` is what was run, where that is more than this script.
    """
    write_json(Path(script).with_suffix(".json"), made_by(script, command=command) | finite(dict(result)))


def made_by(script: str, *, command: str = "") -> dict[str, str]:
    return {"command": command or command_of(script, sys.argv[1:]), "commit": commit()}


def command_of(script: str, words: Sequence[str]) -> str:
    """The command to type at the root of the repository. Files are given by name: their folders differ by machine."""
    module = ".".join(Path(script).resolve().relative_to(ROOT).with_suffix("").parts)
    return shlex.join(["python", "-m", module, *map(portable, words)])


def portable(word: str) -> str:
    """`reviews.txt` for `/data/reviews.txt`, also after `NAME=`."""
    name, mark, value = word.rpartition("=")
    return f"{name}{mark}{Path(value).name}" if Path(value).is_absolute() else word


def commit() -> str:
    """The commit that is checked out; marked `-dirty` where the code differs from it."""
    return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "--", *CODE) else "")


def git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def finite(content: Any) -> Any:
    """The same content with None in place of NaN and infinity, which JSON does not have."""
    if isinstance(content, dict):
        return {key: finite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
