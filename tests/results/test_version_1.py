"""Reports that an earlier release wrote can be read, and say what they said."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections import Counter
from pathlib import Path

import pytest

from quietformer import results
from quietformer.results.base import REPORT_VERSION, Report

for module in pkgutil.iter_modules(results.__path__, "quietformer.results."):
    importlib.import_module(module.name)  # a report's kind is known once its module is imported

FILES = [
    path
    for path in sorted((Path(__file__).parent / "version_1").glob("*.json"))
    if json.loads(path.read_text()).get("kind", "inspect") in Report.kinds
]


def numbers(value):
    """How often each number occurs; versions are none of them, nor is a ratio of two others that stood beside them."""
    if isinstance(value, dict):
        return sum(
            (numbers(item) for name, item in value.items() if name not in ("version", "format", "speedup")), Counter()
        )
    if isinstance(value, list):
        return sum(map(numbers, value), Counter())
    return Counter([value] if isinstance(value, int | float) and not isinstance(value, bool) else [])


def test_the_reports_that_can_be_read_are_there():
    assert {path.stem.partition("_")[0] for path in FILES} >= {"inspect", "quantize", "export"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_report_of_version_1_is_read_and_says_what_it_said(path, tmp_path):
    report = Report.read(path)
    assert report.version == REPORT_VERSION
    assert report.sentences() or report.tables()
    assert numbers(json.loads(report.to_json())) == numbers(json.loads(path.read_text()))
    report.save(tmp_path / "report.json")
    assert Report.read(tmp_path / "report.json") == report
