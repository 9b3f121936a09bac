"""The terminal shows what `print(report)` shows."""

from __future__ import annotations

import pytest

from quietformer.cli.printing import print_report
from quietformer.rendering.page import page
from quietformer.results.plan import PlanReport
from tests.report_words import words_of
from tests.study.papers import study


def planned():
    """A plan with a time and a note."""
    seconds = {"one_layer": 1.0, "two_layers": 2.0, "update": 0.5}
    return PlanReport.model_validate(
        {
            "name": "small",
            "model": {"class_name": "Bert", "attention": "softmax", "parameters": dict.fromkeys(
                ("total", "embeddings", "blocks", "head", "other", "added"), 10)},
            "batch": dict.fromkeys(("devices", "micro_batch", "accumulation", "batch_size"), 1),
            "work": {"unit": "tokens"} | dict.fromkeys(("units_per_step", "steps", "units", "flops_per_step", "flops"), 5),
            "memory": dict.fromkeys(
                ("total", "weights", "gradients", "optimizer", "activations", "activations_per_example"), 1000),
            "time": {"machine": "a CPU", "threads": 1, "precision": "fp32", "measured_micro_batch": 2,
                     "measured_seconds": seconds, "flops_per_second": 1e9, "seconds_per_step": 3.0, "seconds": 15.0},
            "notes": ["Embeddings are tied."],
        }
    )  # fmt: skip


@pytest.mark.parametrize("make", [planned, lambda: study().model_copy(update={"paper": "the paper says so"})])
def test_the_terminal_shows_what_a_printed_report_says(make, capsys):
    report = make()
    print_report(report)
    assert words_of(report) == {*str(report).split()}
    assert words_of(report) <= {*capsys.readouterr().out.split()}


def test_a_plan_says_how_long_it_takes_and_what_it_leaves_open():
    report = planned()
    for text in (str(report), page(report)):
        assert "15.0 seconds for the run" in text
        assert "Embeddings are tied." in text
        assert "1 thread," in text


def test_a_study_says_what_its_columns_mean_and_what_the_paper_says():
    text = str(study().model_copy(update={"paper": "the paper says so"}))
    assert "kurtosis: how far outliers stick out" in text
    assert "The paper: the paper says so" in text
