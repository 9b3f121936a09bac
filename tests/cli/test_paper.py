"""`quietformer paper`: what a person sees, whole numbers at any width, and one line for every mistake."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from quietformer.study import paper as module
from quietformer.study.paper import paper
from quietformer.study.paper_items import ITEMS
from tests.commands import fails
from tests.study.papers import DATA_FILE, read_cell, rows_of, study, write_study

EVIL = "</script><img src=x onerror=alert(1)>"
WITH_NUMBERS = [item for item in ITEMS if item.key]
WITHOUT = [item for item in ITEMS if not item.key]


@pytest.fixture(autouse=True)
def _narrow_and_nothing_measured(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(module, "RESULTS", tmp_path / "no-results")


def marked(out: str, source: str) -> list[list[str]]:
    """The cells of every line with this mark."""
    return [re.split(r"\s{2,}", line)[1:] for line in out.splitlines() if line.startswith(f"{source} ")]


def test_the_overview_has_a_line_for_each_item(run):
    code, out, _ = run("paper")
    assert code == 0
    lines = out.splitlines()
    for item in ITEMS:
        (line,) = [line for line in lines if line.startswith(f"{item.name} ")]
        assert item.shows in line
        rows = rows_of(item.key) if item.key else []
        told = "finding" if any("finding" in row for row in rows) else f"{len(rows)} rows" if rows else "-"
        assert re.search(rf"  {told}  ", line)
        assert ("nothing to run" in line) == (item.name in ("figure4", "figure5"))
    assert "stud" not in out


def test_the_overview_needs_no_torch():
    lines = ("import sys", "from quietformer.cli.main import app", "app(['paper'], standalone_mode=False)")
    code = "; ".join((*lines, "sys.exit('torch' in sys.modules)"))
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize("item", WITH_NUMBERS, ids=lambda item: item.name)
def test_every_number_printed_as_the_papers_is_the_data_files(run, item):
    code, out, _ = run("paper", item.name)
    assert code == 0
    printed, rows = marked(out, "paper"), rows_of(item.key)
    assert len(printed) == len(rows)
    for cells, row in zip(printed, rows, strict=True):
        said = [read_cell(cell, known) for cell, known in zip(cells, row.values(), strict=False)]
        assert said == list(row.values())
        assert all(cell.startswith("paper/") for cell in cells[len(row) :])
    assert marked(out, "ours") == []


@pytest.mark.parametrize("item", WITHOUT, ids=lambda item: item.name)
def test_an_item_without_numbers_shows_none(run, item):
    code, out, _ = run("paper", item.name)
    assert code == 0
    assert "The paper: no numbers of it are kept" in out
    assert marked(out, "paper") == marked(out, "ours") == []
    assert "±" not in out


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.name)
def test_its_commands_are_printed_whole_and_nothing_is_called_ours_that_was_not_run(run, item):
    _, out, _ = run("paper", item.name)
    (found,) = paper(item.name).items
    for command in found.commands:
        assert f"\n  {command}\n" in out
    (line,) = [line for line in out.splitlines() if line.startswith("Ours")]
    if not item.document:
        assert line == ("Ours: not run here" if found.commands else "Ours: nothing to run")


def test_a_study_is_shown_in_a_table_of_its_own(run, tmp_path):
    folder = write_study(tmp_path / "mine", study())
    code, out, _ = run("paper", "table2", "--ours", folder)
    assert code == 0
    assert "Ours: made-up, small/opt: 1.23M to 1.25M parameters, 777 steps, length 48, 2 seeds, 2.0 min a run" in out
    assert [cells[:3] for cells in marked(out, "ours")] == [["vanilla", "888.5 ± 0.7", "999.5 ± 0.7"]]
    assert len(marked(out, "paper")) == 9
    assert "not run here" not in out
    assert "1 study" in run("paper", "--ours", folder)[1]
    assert "not run here" in run("paper", "table1", "--ours", folder)[1]


def test_a_study_that_belongs_nowhere_is_said(run, tmp_path):
    folder = write_study(tmp_path / "mine", study(grid={"training.steps": [10]}))
    assert "made-up belongs to no table or figure of the paper" in run("paper", "--ours", folder)[1]


def test_the_json_has_all_items_or_the_one_asked_for(run, tmp_path):
    assert run("paper", "--json", tmp_path / "all.json")[0] == 0
    assert json.loads((tmp_path / "all.json").read_text()) == json.loads(paper().to_json())
    assert run("paper", "figure7", "--json", tmp_path / "one.json")[0] == 0
    (item,) = json.loads((tmp_path / "one.json").read_text())["items"]
    assert item["paper"][0]["rows"][0]["row"] == DATA_FILE["bias_init_study"]


def test_the_page_holds_others_texts_as_data_only(run, tmp_path):
    folder = write_study(tmp_path / "mine", study(name=EVIL, sentence=EVIL, command=EVIL))
    code, out, _ = run("paper", "--ours", folder, "--html", tmp_path / "paper.html")
    assert code == 0
    assert f"page {tmp_path / 'paper.html'}" in out
    text = (tmp_path / "paper.html").read_text()
    assert EVIL not in text
    assert text.count("</script>") == 2
    assert "http" not in re.sub(r"http-equiv", "", text)


def test_mistakes_are_one_line(run, tmp_path):
    assert fails(run, "paper", "tabel2") == "quietformer: the paper has no 'tabel2'; did you mean 'table2'?"
    assert "choose from figure1" in fails(run, "paper", "appendix")
    wanted = "does not exist; give a folder that `quietformer compare` or `sweep` wrote"
    assert fails(run, "paper", "--ours", tmp_path) == f"quietformer: {tmp_path / 'study.json'} {wanted}"
    assert fails(run, "paper", "--ours", tmp_path / "nope") == f"quietformer: {tmp_path / 'nope'} {wanted}"
    (tmp_path / "study.json").write_text("{}")
    assert "study.json: a report of kind 'inspect'; one of kind 'study' is needed here" in fails(
        run, "paper", "--ours", tmp_path
    )
    assert "is a folder" in fails(run, "paper", "--html", tmp_path)
    assert "no folder" in fails(run, "paper", "--json", tmp_path / "nowhere" / "p.json")
