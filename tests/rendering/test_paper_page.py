"""The page of the paper in a real browser: the paper's numbers whole, ours apart, texts as text, nothing fetched."""

from __future__ import annotations

import pytest

from quietformer.config.options.study import PaperOptions
from quietformer.study import paper as module
from quietformer.study.paper import paper
from tests.rendering.tabs import text
from tests.study.papers import read_cell, rows_of, study, write_study

EVIL = "</script><img src=x onerror=alert(1)>"
pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture
def report(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "RESULTS", tmp_path / "no-results")
    given = write_study(tmp_path / "mine", study(name=EVIL, sentence=EVIL, command=EVIL))
    return paper(options=PaperOptions(ours=[given]))


def cells(tab, item: str, kind: str) -> list[list[str]]:
    return tab.evaluate(
        "([item, kind]) => [...document.querySelectorAll(`#${item} .${kind}.numbers tbody tr`)]"
        ".map(row => [...row.cells].map(cell => cell.innerText.trim()))",
        [item, kind],
    )


def test_every_number_shown_as_the_papers_is_the_data_files(opened, report):
    tab, problems = opened(report)
    for item in report.items:
        shown, rows = cells(tab, item.name, "paper"), rows_of(item.key) if item.key else []
        assert len(shown) == len(rows)
        for line, row in zip(shown, rows, strict=True):
            assert line[0] == "paper"
            said = [read_cell(cell, known) for cell, known in zip(line[1:], row.values(), strict=False)]
            assert said == list(row.values())
        for command in item.commands:
            assert command in text(tab, f"#{item.name}")
        assert bool(cells(tab, item.name, "ours")) == (item.name in ("table2", "table6"))
    assert problems == []


def test_ours_is_marked_with_its_size_and_others_texts_stay_text(opened, report):
    tab, problems = opened(report)
    ((source, *line),) = cells(tab, "table2", "ours")
    assert (source, line[:3]) == ("ours", ["vanilla", "888.5 ± 0.7", "999.5 ± 0.7"])
    shown = text(tab, "#table2")
    assert f"Ours: {EVIL}, small/opt: 1.23M to 1.25M parameters, 777 steps, length 48, 2 seeds, 2.0 min a run" in shown
    assert tab.evaluate("document.querySelectorAll('img').length") == 0
    assert "Ours: not run here." in text(tab, "#table1")
    assert "Ours: nothing to run." in text(tab, "#figure4")
    assert problems == []


@pytest.mark.parametrize("width", [390, 1200])
def test_it_fits_a_phone_and_links_to_each_item(opened, report, width):
    tab, problems = opened(report, viewport={"width": width, "height": 800})
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    tab.click("#overview a[href='#figure7']")
    assert abs(tab.evaluate("document.getElementById('figure7').getBoundingClientRect().top")) < 800
    assert problems == []
