"""What was typed, looked at as a whole: nothing is empty, and no report is written over what the command reads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from quietformer.errors import QuietformerError

WRITTEN = {"json_path": "--json", "page": "--page", "card": "--card", "html": "--html"}
"""Options that name a file to write."""

READ = (
    "config.json", "*_config.json", "*.safetensors*", "*.bin", "*.onnx*", "tokenizer*", "vocab.*", "merges.txt", "*.model",
    "*_map.json", "modules.json",
)  # fmt: skip
"""Files of a model folder, which are not to be replaced by a report."""


def check_given(values: Mapping[str, Any], typed: set[str]) -> None:
    """Refuse what a shell makes of a variable that is not set, and a file that is both read and written."""
    for name in sorted(typed):
        if values[name] == "":
            raise QuietformerError(f"--{name.replace('_', '-')} is empty; give a value, or leave it out")
    written = [(flag, path) for name, flag in WRITTEN.items() if name in typed for path in _files(name, values)]
    given = [value for name in sorted(typed - WRITTEN.keys()) for value in _paths(values[name])]
    for flag, path in written:
        if any(path.absolute() == other.absolute() for kind, other in written if kind != flag):
            raise QuietformerError("--page, --json, --card and --html name the same file; each needs its own")
        for other in given:
            if path.absolute() == other.absolute() or _reads(other, path):
                raise QuietformerError(
                    f"{flag} would write {path}, which this command takes as {other}; give another name"
                )


def _files(name: str, values: Mapping[str, Any]) -> list[Path]:
    """A page has its JSON beside it."""
    path = Path(values[name])
    beside = name == "page" and values.get("json_path") is None
    return [path, path.with_suffix(".json")] if beside and path.name else [path]


def _paths(value: Any) -> Iterator[Path]:
    for one in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(one, (str, Path)) and str(one):
            yield Path(one)


def _reads(given: Path, path: Path) -> bool:
    """Whether the path is the file that was given, or one that makes up the folder that was given."""
    with contextlib.suppress(OSError, ValueError):  # names that no file can have are told where they are read
        if not path.exists() or not given.exists():
            return False
        inside = given.is_dir() and path.parent.samefile(given) and any(fnmatch(path.name, one) for one in READ)
        return inside or path.samefile(given)
    return False
