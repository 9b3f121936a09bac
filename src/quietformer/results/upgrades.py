"""Reports written by earlier releases, in today's form."""

from __future__ import annotations

from typing import Any

from quietformer.results.run_upgrades import retrofit_from_version_1, train_from_version_1

FIELDS = {
    "float": "fp32",
    "class": "class_name",
    "figures": "metrics",
    "beside": "baselines",
    "float_difference": "fp32_difference",
}
"""Names of version 1, and what they are called since."""
TASKS = {"image": "images", "imitate": "distill"}
RUN = ("name", "at", "seed", "elsewhere", "failed")
"""Fields of a run that version 1 kept beside its results."""
OF_STUDY = ("primary", "better")
"""Fields that version 1 repeated in every row of a study."""

KINDS = {"train": train_from_version_1, "retrofit": retrofit_from_version_1}
"""What else differed in reports of one kind."""


def from_version_1(fields: dict[str, Any]) -> dict[str, Any]:
    """Version 1 had other names for some fields; an inspection and a failed run did not say their kind."""
    kind: Any = fields.get("kind") or ("trial" if {"key", "failed"} <= fields.keys() else "inspect")
    if kind == "trial":
        return _trial(fields)
    renamed: dict[str, Any] = _renamed(fields)
    if kind == "study":
        renamed = _study(fields, renamed)
    elif isinstance(kind, str) and (further := KINDS.get(kind)) is not None:
        renamed = further(renamed)
    return renamed | {"kind": kind, "version": 2}


def _trial(fields: dict[str, Any]) -> dict[str, Any]:
    """The recipe inside the key is read by the recipe itself, which knows its own old names."""
    report: dict[str, Any] = {name: fields[name] for name in ("key", "versions") if name in fields}
    return {"kind": "trial", "version": 2, **report, **_run(fields)}


def _run(fields: dict[str, Any]) -> dict[str, Any]:
    """Version 1 had the results of a run flat beside its name, and {} or a reason for outliers that were not measured."""
    run = {name: fields[name] for name in RUN if fields.get(name) is not None}
    if "failed" in run:
        return run
    dropped = {*RUN, "version", "kind", "key", "versions"}
    at, paper = fields.get("at"), fields.get("paper")
    result = _renamed({name: value for name, value in fields.items() if name not in (*dropped, "paper")})
    if paper is not None:
        result["paper"] = paper
    if not isinstance(result.get("outliers"), dict) or "infinity_site" not in result["outliers"]:
        result.pop("outliers", None)
    return run | {"at": at, "result": result}


def _study(fields: dict[str, Any], renamed: dict[str, Any]) -> dict[str, Any]:
    """What users wrote (the study, its grid, what the paper reports) keeps its names."""
    rows = _each(fields.get("rows"), _row)
    trials = _each(fields.get("trials"), _run)
    return renamed | {"rows": rows, "trials": trials, "study": fields.get("study")}


def _row(row: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = _renamed({name: value for name, value in row.items() if name not in OF_STUDY})
    return found | {name: row[name] for name in ("at", "paper") if name in row}


def _each(rows: Any, change: Any) -> Any:
    """Every object of a list in its new form; anything else is left for the report to refuse."""
    return [change(row) if isinstance(row, dict) else row for row in rows] if isinstance(rows, list) else rows


def _renamed(value: Any) -> Any:
    if isinstance(value, list):
        return [_renamed(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {FIELDS.get(name, name): _renamed(item) for name, item in value.items()}
    if isinstance(task := found.get("task"), str):
        found["task"] = TASKS.get(task, task)
    return found


# ---- parts of reports, wherever they stand; before these changes the version was 2 as well
TIMED = {
    "torch_fp32_ms": ("torch", "fp32"),
    "onnx_fp32_ms": ("onnxruntime", "fp32"),
    "onnx_int8_ms": ("onnxruntime", "int8"),
}
"""Medians that a row of latencies had by name."""


def latency_with_runs(fields: Any) -> Any:
    """A row of latencies had three medians, and their ratio beside them."""
    if not isinstance(fields, dict) or "runs" in fields:
        return fields
    rest = {name: value for name, value in fields.items() if name not in (*TIMED, "speedup")}
    runs = [
        {"runtime": runtime, "kind": kind, "median_ms": fields[name]}
        for name, (runtime, kind) in TIMED.items()
        if name in fields
    ]
    return rest | {"runs": runs}


def details_with_runtimes(fields: Any) -> Any:
    """Details of an export had the agreement of ONNX Runtime beside everything else."""
    if not isinstance(fields, dict) or "runtimes" in fields or "cosine_to_simulation" not in fields:
        return fields
    found = dict(fields)
    agreement = {"cosine": found.pop("cosine_to_simulation"), "equal": found.pop("equal_to_simulation", None)}
    return found | {"runtimes": [{"runtime": "onnxruntime", "file": "model.onnx", "agreement": agreement}]}
