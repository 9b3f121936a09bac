"""Recipes written for earlier releases: what has another name since."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import JsonValue

from quietformer.config.spec_base import JsonObject
from quietformer.errors import SpecError

TASKS = {"imitate": "distill"}
SECTIONS = {"rounding": "qat"}
"""Names of release 1, and what they are called since."""


def upgraded(fields: Mapping[str, JsonValue]) -> JsonObject:
    """The fields of a recipe under today's names; those of a recipe of today are left as they are."""
    found = dict(fields)
    for old, new in SECTIONS.items():
        if old in found:
            if new in found:
                raise SpecError(f"the recipe has both {old!r} and {new!r}, which are one section; keep {new!r}")
            found[new] = found.pop(old)
    if isinstance(task := found.get("task"), str):
        found["task"] = TASKS.get(task, task)
    return found


def upgraded_key(key: str) -> str:
    """The same for one dotted field, as `--set` takes it: `rounding.share` is `qat.share`."""
    section, dot, rest = key.partition(".")
    return f"{SECTIONS.get(section, section)}{dot}{rest}"
