"""The metrics of the original in the folder of a retrofit: an interrupted one does not measure them again."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import Field, JsonValue, ValidationError

from quietformer.files import write_text
from quietformer.results.base import REPORT_VERSION, Record
from quietformer.results.before_after import Side
from quietformer.results.run_upgrades import side_from_version_1
from quietformer.results.upgrades import from_version_1

BEFORE = "before.json"


class BeforeFile(Record):
    """One side, and what it was measured with."""

    version: int = REPORT_VERSION
    key: list[JsonValue] = Field(description="what must be the same for the side to be that of this retrofit")
    side: Side


def keep_before(out: Path, key: list[JsonValue], side: Side) -> None:
    write_text(out / BEFORE, BeforeFile(key=key, side=side).model_dump_json() + "\n")


def kept_before(out: Path, key: list[JsonValue]) -> Side | None:
    """The side that was measured with this key, also by an earlier release."""
    try:
        fields = json.loads((out / BEFORE).read_text(encoding="utf-8"))
        if fields["key"] != json.loads(json.dumps(key)):
            return None
        side = fields["side"]
        return Side.model_validate(side if "version" in fields else side_from_version_1(from_version_1(side)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ValidationError):
        return None
