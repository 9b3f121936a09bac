"""Tiny studies for the tests: runs of a second or two."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from quietformer.results.study import StudyReport
from tests.training.recipes import tiny, write_prose

VARIANTS = {
    "vanilla": {},
    "clipped": {"set": {"attention.normalizer": "clipped_softmax(alpha=2, warmup_steps=4)"}},
    "gated": {"set": {"attention.gate": "linear(pi_init=0.25)"}},
}
CHANGING = ("seconds", "curve")
"""What two runs of the same recipe may differ in: how long they took, and how often a log was cut short."""


def write_recipe_file(folder: Path, task: str = "causal", **changes) -> Path:
    source = "digits" if task == "images" else write_prose(folder / "text.txt", 12)
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(tiny(task, source, **changes) | {"variants": VARIANTS}))
    return path


def write_study_file(folder: Path, **fields) -> Path:
    write_recipe_file(folder)
    path = folder / "study.yaml"
    given = {"recipe": "recipe.yaml", "measures": {"sequences": 8, "calibrations": 2}} | fields
    path.write_text(yaml.safe_dump(given))
    return path


def read_report(out: Path) -> StudyReport:
    return StudyReport.read(out / "study.json")


def results_of(out: Path):
    """What a study measured, without what may differ from one time to the next."""
    report = json.loads((out / "study.json").read_text())
    rows = [{name: value for name, value in row.items() if name not in CHANGING} for row in report["rows"]]
    trials = [{name: value for name, value in one.items() if name != "elsewhere"} for one in report["trials"]]
    for one in trials:
        if "result" in one:
            one["result"] = {name: value for name, value in one["result"].items() if name not in CHANGING}
            if one["result"].get("real"):
                one["result"]["real"].pop("latency")
    return rows, trials
