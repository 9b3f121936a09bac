"""The page of `export`: words and tables as printed, quality against speed with its front, everybody's names as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from quietformer.rendering.export_page_fields import FLOOR, points
from quietformer.results.base import Report
from quietformer.results.export import BaselineRow, ExportReport
from quietformer.results.quality import Metrics
from tests.rendering.marks import in_browser, on_every_screen

EVIL = "</script><img src=x onerror=alert(1)>\"'`/*SCRIPT*/"
OLD = Path(__file__).parents[1] / "results" / "version_1" / "export.json"


def tool(name, ms, value, **fields):
    metrics = None if value is None else Metrics(cosine=value, neighbour_agreement=value)
    return BaselineRow(name=name, what="made so", runtime="R, f32", metrics=metrics, fastest_ms=ms, **fields)


TOOLS = [
    tool("fp32", 100.0, 1.0),
    tool("fast", 20.0, 0.9),
    tool("ours", 25.0, 0.99, ours=True),
    tool("worse and slower", 50.0, 0.95),
    tool("slow and good", 50.0, 0.995),
    tool("as fast as ours, worse", 25.0, 0.98),
    tool("simulated", None, 0.9),
    BaselineRow(name=EVIL, what="", error=f"{EVIL}: it failed"),
]


def report(tools=TOOLS):
    found = Report.read(OLD)
    assert isinstance(found, ExportReport)
    measured = {"primary": "cosine", "better": "higher", "fp32": Metrics(cosine=1.0, neighbour_agreement=1.0)}
    return found.model_copy(update=measured | {"baselines": tools})


def test_the_front_has_every_tool_that_none_beats_in_both():
    found = points(report())
    assert [one["name"] for one in found if one["front"]] == ["fast", "ours", "slow and good", "fp32"]
    assert {one["name"] for one in found} == {row.name for row in TOOLS if row.fastest_ms}
    by_name = {one["name"]: one for one in found}
    assert by_name["fast"]["speed"] == pytest.approx(5.0)
    assert by_name["fast"]["lost"] == pytest.approx(0.1)
    assert by_name["fp32"]["lost"] == FLOOR


def test_of_perplexities_the_relative_rise_is_lost():
    rows = [
        BaselineRow(name=name, what="", metrics=Metrics(perplexity=value), fastest_ms=ms)
        for name, ms, value in (("fp32", 10.0, 20.0), ("int8", 5.0, 21.0))
    ]
    found = report(rows).model_copy(
        update={"primary": "perplexity", "better": "lower", "fp32": Metrics(perplexity=20.0)}
    )
    assert {one["name"]: one["lost"] for one in points(found)} == {"fp32": FLOOR, "int8": pytest.approx(0.05)}


@on_every_screen
def test_the_page_shows_the_tables_and_a_point_for_each_tool(opened, width, scheme):
    tab, problems = opened(report(), viewport={"width": width, "height": 900}, color_scheme=scheme)
    assert problems == []
    shown = report()
    assert tab.locator("#scatter circle").count() == sum(row.fastest_ms is not None for row in TOOLS)
    assert tab.locator("#scatter circle.ours").count() == 1
    assert len(tab.locator("#scatter polyline").get_attribute("points").split()) == 4
    assert tab.locator("#tables section").count() == len(shown.tables())
    for table, section in zip(shown.tables(), tab.locator("#tables section").all(), strict=True):
        assert section.locator("h2").inner_text() == table.title
        cells = [[cell.inner_text() for cell in line.locator("td").all()] for line in section.locator("tbody tr").all()]
        assert cells == [list(row) for row in table.rows]
    assert tab.locator("img").count() == 0  # the name of a tool is text
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


@in_browser
def test_an_export_without_baselines_has_no_plot(opened):
    tab, problems = opened(report([]))
    assert problems == []
    assert not tab.locator("#front").is_visible()
