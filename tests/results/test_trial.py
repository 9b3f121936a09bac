"""The report of one run: JSON both ways, files of the first release, and what makes it count as this run's."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import yaml

from quietformer.config.recipe import Recipe
from quietformer.config.study import Measures, Trial
from quietformer.errors import QuietformerError
from quietformer.results.base import Report
from quietformer.results.quality import Metrics, Spread, Spreads
from quietformer.results.trial import Baselines, CurvePoint, RealInt8, TrialKey, TrialReport, TrialResult

OLD = Path(__file__).parents[1] / "study" / "version_1"


@pytest.fixture
def trial():
    recipe = Recipe(**yaml.safe_load((OLD / "recipe.yaml").read_text()))
    return Trial("gated,seed=3", {"variant": "gated", "attention.gate": {"kind": "linear"}}, 3, recipe)


@pytest.fixture
def result():
    return TrialResult(
        attention="softmax()", parameters=100, steps=10, seconds=90.0, task="causal", primary="perplexity", better="lower",
        fp32=Metrics(perplexity=20.0, loss=3.0), quantized={"w8a8": Spreads(perplexity=Spread(mean=math.inf, std=math.nan))},
        real=RealInt8(error="no such operator"), baselines=Baselines(bigram_perplexity=40.0),
        curve=[CurvePoint(step=1, loss=math.nan), CurvePoint(step=2, loss=3.0, dead_rows=0.5)], paper={"fp16": [4.49, 0.01]},
    )  # fmt: skip


def test_it_is_read_back_as_it_was_saved(trial, result, tmp_path):
    report = TrialReport.made(trial, Measures(), result=result)
    report.save(tmp_path / "trial.json")
    assert TrialReport.read(tmp_path / "trial.json") == Report.read(tmp_path / "trial.json") == report
    assert report.key == TrialKey.of(trial, Measures())
    assert report.key != TrialKey.of(trial, Measures(sequences=9))


def test_what_is_no_number_is_broken_and_not_lost(trial, result):
    report = TrialReport.made(trial, Measures(), result=result)
    assert report.result.quantized["w8a8"].perplexity == Spread(mean=None, std=None)
    assert report.result.points("loss") == [3.0]
    assert report.in_one_line() == "gated,seed=3: perplexity 20.00, W8A8 broken; 1.5 min"
    assert report.tables()[0].rows == [["perplexity", "20.00", "broken"], ["loss", "3.00", "broken"]]


def test_the_study_keeps_all_but_the_key(trial, result):
    report = TrialReport.made(trial, Measures(), result=result)
    run = report.run()
    assert (run.name, run.at, run.seed, run.result) == (report.name, report.at, report.seed, report.result)
    assert json.loads(run.model_dump_json()).keys() == {"name", "at", "seed", "result"}
    assert TrialReport.made(trial, Measures(), failed="no disk").run().failed == "no disk"


def test_a_run_has_a_result_or_a_failure(trial, result):
    for outcome in ({}, {"failed": "no disk", "result": result}):
        with pytest.raises(ValueError, match="either a result or a failure"):
            TrialReport.made(trial, Measures(), **outcome)


@pytest.mark.parametrize("name", ["trial.json", "failed.json"])
def test_a_file_of_the_first_release_is_read(name):
    told, report = json.loads((OLD / name).read_text()), TrialReport.read(OLD / name)
    assert (report.name, report.at, report.seed, report.failed) == (
        told["name"], told["at"], told["seed"], told.get("failed"),
    )  # fmt: skip
    assert report.key.recipe.training.batch_size == told["key"]["recipe"]["training"]["batch_size"]
    assert report.key.measures == Measures(**told["key"]["measures"])
    assert report.version == 2
    if report.result is not None:
        assert report.result.real.bytes.fp32 == told["real"]["bytes"]["fp32"]
        assert len(report.result.real.latency) == len(told["real"]["latency"])
        assert [point.step for point in report.result.curve] == [point["step"] for point in told["curve"]]
        assert report.result.baselines.majority_accuracy == told["beside"]["majority_accuracy"]


def test_outliers_that_were_not_measured_are_none(tmp_path):
    for outliers in ({}, {"unknown": "no blocks were found"}):
        old = json.loads((OLD / "trial.json").read_text()) | {"outliers": outliers}
        assert TrialReport.from_fields(old).result.outliers is None


@pytest.mark.parametrize(("change", "message"), [({"version": 3}, "version 3"), ({"at": None}, "at"), ({"x": 1}, "x")])
def test_what_is_newer_or_damaged_is_refused(change, message, trial, result):
    fields = json.loads(TrialReport.made(trial, Measures(), result=result).to_json())
    with pytest.raises(QuietformerError, match=message):
        TrialReport.from_fields(fields | change)


def test_a_metric_that_does_not_exist_is_refused(trial, result, tmp_path):
    report = TrialReport.made(trial, Measures(), result=result)
    report.save(tmp_path / "trial.json")
    damaged = (tmp_path / "trial.json").read_text().replace('"perplexity"', '"p%rplexity"')
    (tmp_path / "trial.json").write_text(damaged)
    with pytest.raises(QuietformerError, match="p%rplexity"):
        TrialReport.read(tmp_path / "trial.json")
