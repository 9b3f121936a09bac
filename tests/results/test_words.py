"""What reports say where a model gives no number, and where there is one of a thing."""

from __future__ import annotations

from pathlib import Path

import pytest

from quietformer.results.base import Report
from quietformer.results.inspect import CheckpointHeadline, Intervention, largest_kurtosis
from quietformer.results.numbers import BROKEN, MISSING, counted

OLD = Path(__file__).parent / "version_1"


def old(kind):
    return Report.read(next(OLD.glob(f"{kind}*.json")))


def test_an_intervention_that_breaks_the_model_does_not_read_as_zero():
    row = Intervention(what="zeroed", measure="cosine", before=1.0, after=float("nan"), touched=[])
    report = old("inspect").model_copy(update={"interventions": [row]})
    assert f"  zeroed: cosine 1.0000 -> {BROKEN}" in report.sentences()


def test_a_checkpoint_without_numbers_does_not_read_as_zero():
    row = CheckpointHeadline(
        model="m", severity="quiet", infinity_site="s", infinity_norm=None, kurtosis_sites=[], kurtosis=None
    )
    report = old("inspect").model_copy(update={"growth": [row]})
    assert f"  m: infinity norm {MISSING}, kurtosis {MISSING}" in report.sentences()


def test_tensors_without_a_kurtosis_have_no_largest_one():
    report = old("inspect")
    flat = [row.model_copy(update={"kurtosis": None}) for row in report.sites]
    assert largest_kurtosis(flat) is None
    assert report.model_copy(update={"sites": flat}).extremes()[1] is None
    assert largest_kurtosis([*flat, report.sites[0]]) == report.sites[0].kurtosis


def test_a_classifier_that_gives_no_number_has_no_accuracy():
    report = old("train")
    broken = type(report.validation)(nll=float("nan"), accuracy=float("nan"))
    lines = report.model_copy(update={"validation": broken, "best": None, "majority_accuracy": None}).sentences()
    assert f"validation accuracy {BROKEN}" in lines


def test_an_export_that_was_not_timed_has_no_table_of_times():
    report = old("export")
    assert any("Milliseconds" in table.title for table in report.tables())
    untimed = report.model_copy(update={"export": report.export.model_copy(update={"latency": []})})
    assert "Milliseconds" not in str(untimed)


def test_the_column_of_speeds_names_the_shape_that_they_are_of():
    report = old("export")
    table = next(table for table in report.tables() if "Milliseconds" in table.title)
    assert table.columns[-1] == f"speed at {report.export.latency[-1].short}"


@pytest.mark.parametrize("equal", [True, False, None])
def test_openvino_on_a_processor_whose_integer_products_overflow_is_told(equal):
    report = old("export")
    openvino = report.export.runtimes[0].model_copy(
        update={"runtime": "openvino", "file": "openvino/openvino_model.xml"}
    )
    made = report.export.model_copy(update={"signed_equal": equal, "runtimes": [*report.export.runtimes, openvino]})
    told = any("no VNNI" in line for line in report.model_copy(update={"export": made}).sentences())
    assert told == (equal is False)
    alone = made.model_copy(update={"runtimes": made.runtimes[:1]})
    assert not any("no VNNI" in line for line in report.model_copy(update={"export": alone}).sentences())


@pytest.mark.parametrize(("number", "text"), [(0, "0 runs"), (1, "1 run"), (2, "2 runs"), (1200, "1,200 runs")])
def test_one_of_a_thing_is_singular(number, text):
    assert counted(number, "run") == text
    report = old("quantize")
    once = report.model_copy(update={"runs": report.runs[:1]})
    assert once.table.title.endswith(", 1 calibration")
