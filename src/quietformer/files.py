"""Writing files so that no reader ever sees half of one."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from quietformer.errors import QuietformerError


def write_text(path: Path, text: str) -> None:
    """Write under a temporary name beside the file, then rename."""
    check_place(path)
    handle, draft = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.umask(umask := os.umask(0o022))
        os.chmod(draft, 0o666 & ~umask)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise


def check_place(path: Path | None) -> None:
    """Whether a file can be written there, to be asked before the work rather than after."""
    if path is not None and path.is_dir():
        raise QuietformerError(f"{path} is a folder; give the name of a file")
    if path is not None and not path.parent.is_dir():
        raise QuietformerError(f"there is no folder {path.parent} to write {path.name} into")


def write_json(path: Path | None, figures: Any) -> None:
    """Write the figures, if a place is given."""
    if path is not None:
        write_text(path, json.dumps(figures, indent=1, allow_nan=False) + "\n")
