"""The fingerprint of a run's data, kept in its folder: a run must not resume on other data than it began with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from quietformer.errors import QuietformerError
from quietformer.files import write_json

DATA = "data.json"
"""The file of a run folder."""


def check_data(run: Path, fingerprint: dict[str, Any]) -> None:
    """Refuse data that differs from when the run began; the first time, write the fingerprint down."""
    path = run / DATA
    if not path.is_file():
        write_json(path, fingerprint)
        return
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        before = None
    if before != fingerprint:
        raise QuietformerError(
            f"the data has changed since the run in {run} began ({before} then, {fingerprint} now); put it back, or choose "
            "another --out"
        )
