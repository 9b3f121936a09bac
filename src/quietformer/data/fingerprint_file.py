"""The fingerprint of a run's data, kept in its folder: a run must not resume on other data than it began with."""

from __future__ import annotations

import json
from pathlib import Path

from quietformer.errors import QuietformerError
from quietformer.files import write_text
from quietformer.results.base import Record

DATA = "data.json"
"""The file of a run folder."""


class DataFingerprint(Record):
    """What tells data from other data: how much there is, and a hash of some of it."""

    examples: int | None
    validation: int
    sample: str | None = None


def check_data(run: Path, fingerprint: DataFingerprint) -> None:
    """Refuse data that differs from when the run began; the first time, write the fingerprint down."""
    path = run / DATA
    if not path.is_file():
        write_text(path, fingerprint.model_dump_json(indent=1) + "\n")
        return
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        before = None
    if before != (now := fingerprint.model_dump()):
        raise QuietformerError(
            f"the data has changed since the run in {run} began ({before} then, {now} now); put it back, or choose "
            "another --out"
        )
