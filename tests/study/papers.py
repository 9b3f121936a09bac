"""What tests of `quietformer paper` share: studies that were never run, with numbers that nobody could take for the paper's."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from quietformer.config.study import Study
from quietformer.results.data import DataInfo
from quietformer.results.inspect import Headline
from quietformer.results.quality import Metrics, Spread, Spreads
from quietformer.results.study import StudyReport
from quietformer.results.trial import TrialResult, TrialRun
from quietformer.study.paper import DATA
from quietformer.study.run import study_report

DATA_FILE: dict[str, Any] = json.loads(DATA.read_text())


def study(recipe="small/opt", grid=None, *, seeds=(0, 1), bits=("w8a8",), **more) -> StudyReport:
    """The report of a study of two seeds, the second of which is a little larger in everything."""
    asked = Study(
        name="made-up",
        recipe=recipe,
        grid=grid or {"variant": ["vanilla", "gated"]},
        seeds=seeds,
        measures={"bits": bits},
    )
    points = [{field: values[0] for field, values in asked.trained.items()}]
    runs = [_run(at, seed, asked.measured.bits) for at in points for seed in seeds]
    return study_report(asked, runs, "quietformer compare made-up").model_copy(update=more)


def _run(at, seed, bits) -> TrialRun:
    result = TrialResult(
        attention="softmax()", parameters=1_230_000 + seed * 20_000, steps=777, seconds=120.0,
        outliers=Headline(infinity_site="x", infinity_norm=909.0 + seed, kurtosis_sites=[], kurtosis=606.0),
        paper={"table": "main", "fp16": 5555.0}, task="causal", primary="perplexity", better="lower",
        fp32=Metrics(perplexity=888.0 + seed), data=DataInfo(length=48, sources=["x"]),
        quantized={width: Spreads(perplexity=Spread(mean=999.0 + seed, std=1.0)) for width in bits},
    )  # fmt: skip
    return TrialRun(name=f"seed={seed}", at=at, seed=seed, result=result)


def write_study(folder: Path, report: StudyReport) -> Path:
    folder.mkdir()
    report.save(folder / "study.json")
    return folder


def rows_of(key: str) -> list[dict[str, Any]]:
    """The rows of the data file under a key, in their order; a finding is a row of its own."""
    content = DATA_FILE[key]
    if isinstance(content, list):
        return content
    parts = [part for part in content.values() if isinstance(part, list) and isinstance(part[0], dict)]
    return [row for part in parts for row in part] or [content]


def read_cell(text: str, known: Any) -> Any:
    """What a printed cell says, in the form in which the data file has it."""
    if isinstance(known, str):
        return text
    numbers = [float(number) for number in re.split(" ± |, ", text)]
    return numbers if isinstance(known, list) else numbers[0]
