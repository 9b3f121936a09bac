"""What the subcommands share: figures as a file, and a word on what is going on."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def write_json(path: Path | None, figures: Any) -> None:
    """Write the figures under a temporary name and rename, so that no reader ever sees half a file."""
    if path is None:
        return
    handle, draft = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(json.dumps(figures, indent=2, allow_nan=False) + "\n")
        os.umask(umask := os.umask(0o022))
        os.chmod(draft, 0o666 & ~umask)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """A spinner on standard error while something takes its time."""
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield
