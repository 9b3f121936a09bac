"""The report of a study: words, tables, a page and a schema from the report alone."""

from __future__ import annotations

import html
import json

import pytest

from quietformer.results.listings import RecipesReport, StudiesReport, VariantsReport
from quietformer.results.paper import PaperReport
from quietformer.results.study import StudyReport
from quietformer.results.study_table import label, setting
from quietformer.results.trial import TrialReport
from quietformer.workflows import listings
from tests.study.papers import study


def test_words_and_tables_come_from_the_report():
    report = study()
    assert report.sentences() == [report.sentence]
    assert report.table.columns[:3] == ["", "perplexity", "W8A8"]
    assert report.table.rows[0][:3] == ["vanilla", "888.5 ± 0.7", "999.5 ± 0.7"]
    assert str(report).startswith(report.sentence)
    assert report.finished == 2


def test_it_is_read_back_as_it_was_saved(tmp_path):
    report = study()
    report.save(tmp_path / "study.json")
    assert StudyReport.read(tmp_path / "study.json") == report


def test_a_notebook_shows_the_page(tmp_path):
    report = study()
    report.to_html(tmp_path / "page.html")
    assert html.escape((tmp_path / "page.html").read_text()) in report._repr_html_()
    assert report._repr_html_().startswith("<iframe")


@pytest.mark.parametrize("kind", [TrialReport, StudyReport, PaperReport, RecipesReport, StudiesReport, VariantsReport])
def test_every_report_has_a_schema(kind):
    assert "properties" in json.loads(json.dumps(kind.model_json_schema()))


@pytest.mark.parametrize(
    ("at", "text"),
    [
        ({"variant": "gated", "bits": "w8a8"}, "gated, W8A8"),
        ({"attention.normalizer.gamma": -0.03, "attention.normalizer.zeta": 1.0}, "gamma -0.03, zeta 1.0"),
        ({"attention.gate.kind": "a", "optimizer.kind": "b"}, "attention.gate.kind a, optimizer.kind b"),
        ({"attention.gate": None, "model.config": {"x": 1}}, 'gate none, config {"x": 1}'),
    ],
)
def test_a_point_is_named_as_people_say_it(at, text):
    assert label(at) == text
    assert setting({**at, "bits": "w4a4"}) == text.removesuffix(", W8A8")


def test_listings_are_reports(tmp_path):
    for report in (listings.recipes(), listings.studies(), listings.variants()):
        report.save(tmp_path / "list.json")
        assert type(report).read(tmp_path / "list.json") == report
        assert report.tables()[0].rows
