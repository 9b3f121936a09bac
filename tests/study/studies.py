"""Tiny studies for the tests: runs of a second or two."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from tests.training.recipes import tiny, write_prose

VARIANTS = {
    "vanilla": {},
    "clipped": {"set": {"attention.normalizer": "clipped_softmax(alpha=2, warmup_steps=4)"}},
    "gated": {"set": {"attention.gate": "linear(pi_init=0.25)"}},
}
CHANGING = ("seconds", "elsewhere", "curve")
"""What two runs of the same recipe may differ in: how long they took, where they were, and how often a log was cut short."""


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


def figures_of(out: Path):
    """What a study measured, without what may differ from one time to the next."""
    figures = json.loads((out / "study.json").read_text())
    rows = [{name: value for name, value in row.items() if name not in CHANGING} for row in figures["rows"]]
    trials = [{name: value for name, value in one.items() if name not in CHANGING} for one in figures["trials"]]
    for one in trials:
        if one.get("real"):
            one["real"].pop("latency")
    return rows, trials
