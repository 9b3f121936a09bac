"""Reports of `train` and `retrofit` that the first release wrote, in today's form."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from quietformer.config.recipe_upgrades import upgraded


def renamed_metrics(row: Mapping[str, Any]) -> dict[str, Any]:
    """One line of a log."""
    return {"eval_fp32" if name == "eval_float" else name: value for name, value in row.items()}


def train_from_version_1(fields: dict[str, Any]) -> dict[str, Any]:
    """The command was a list, a metric had another name in the log, and unknown outliers stood in place of the others."""
    found = dict(fields)
    if isinstance(command := found.get("command"), list):
        found["command"] = shlex.join(map(str, command))
    if isinstance(log := found.get("log"), list):
        found["log"] = [renamed_metrics(row) for row in log]
    if isinstance(outliers := found.get("outliers"), dict) and "unknown" in outliers:
        found["outliers"], found["outliers_unknown"] = None, outliers["unknown"]
    return found


def retrofit_from_version_1(fields: dict[str, Any]) -> dict[str, Any]:
    """Sides had None for what was not measured; the recipe, the log and the table had other names."""
    found = dict(fields)
    for name in ("before", "after"):
        if isinstance(side := found.get(name), dict):
            found[name] = side_from_version_1(side)
    if isinstance(log := found.get("log"), list):
        found["log"] = [renamed_metrics(row) for row in log]
    found["rows"] = [row | {"what": row["what"].replace("floating point", "fp32")} for row in found.get("rows", [])]
    if isinstance(recipe := found.get("recipe"), dict):
        found["recipe"] = upgraded(recipe)
    if isinstance(asked := found.get("asked"), dict):
        # Sources were written as text that cannot be read back, so they are not compared.
        kept = {name: value for name, value in asked.items() if name not in ("sources", "evaluation", "images")}
        found["asked"] = {"qat" if name == "rounding" else name: value for name, value in kept.items()}
    return {name: value for name, value in found.items() if value is not None}


def side_from_version_1(side: dict[str, Any]) -> dict[str, Any]:
    """One side, its fields already under today's names."""
    known = ("inspect", "fp32", "simulated", "real")
    found = {name: side[name] for name in known if side.get(name) is not None}
    found["inspect"] = side["inspect"] | {"kind": "inspect", "version": 2}
    if isinstance(real := found.get("real"), dict):
        found["real"] = {name: value for name, value in real.items() if value not in (None, {})}
    return found
