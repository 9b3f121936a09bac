"""Reports written by earlier releases, in today's form."""

from __future__ import annotations

from typing import Any

from quietformer.results.run_upgrades import retrofit_from_version_1, train_from_version_1

FIELDS = {"float": "fp32", "class": "class_name", "figures": "metrics", "float_difference": "fp32_difference"}
"""Names of version 1, and what they are called since."""
TASKS = {"image": "images", "imitate": "distill"}

KINDS = {"train": train_from_version_1, "retrofit": retrofit_from_version_1}
"""What else differed in reports of one kind."""


def from_version_1(fields: dict[str, Any]) -> dict[str, Any]:
    """Version 1 had other names for some fields, and an inspection did not say its kind."""
    renamed: dict[str, Any] = _renamed(fields)
    further = KINDS.get(str(renamed.get("kind")))
    return {"kind": "inspect"} | (renamed if further is None else further(renamed)) | {"version": 2}


def _renamed(value: Any) -> Any:
    if isinstance(value, list):
        return [_renamed(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {FIELDS.get(name, name): _renamed(item) for name, item in value.items()}
    if isinstance(task := found.get("task"), str):
        found["task"] = TASKS.get(task, task)
    return found
