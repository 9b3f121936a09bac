"""Kept results: each says where it comes from, and the documents say what the results say."""

from __future__ import annotations

import importlib
import json
import re
import subprocess

import pytest

from experiments import provenance, tables
from experiments.documents import between, markdown
from experiments.provenance import ROOT

HOME = ROOT / "experiments"
RESULTS = sorted(HOME.rglob("*.json"))
MODULES = sorted(path for path in HOME.rglob("*.py") if path.name != "__init__.py")
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(path):
    return path.relative_to(HOME).with_suffix("").as_posix()


@pytest.fixture(scope="module")
def documents():
    return tables.documents()


def test_the_documents_are_what_the_command_writes(documents):
    assert [place for place, text in documents.items() if (ROOT / place).read_text() != text] == [], "run `make tables`"


def test_every_mark_in_the_documents_belongs_to_a_table(documents):
    marks = {
        (path.relative_to(ROOT).as_posix(), mark)
        for path in DOCUMENTS
        for mark in re.findall(r"^<!-- (\S+) -->$", path.read_text(), re.MULTILINE)
        if not mark.startswith("/")
    }
    assert marks == {*tables.tables(), ("docs/architecture.md", "graph")}


@pytest.mark.parametrize("path", RESULTS, ids=name_of)
def test_a_result_names_the_command_and_the_commit_that_made_it(path):
    result = json.loads(path.read_text())
    assert result["command"]
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", result["commit"])


@pytest.mark.parametrize("path", RESULTS, ids=name_of)
def test_a_result_is_shown_or_cited_in_the_documents(path):
    made_from = {name for name, _ in [*tables.TABLES.values(), *tables.PAGES.values()]}
    cited = any(path.relative_to(ROOT).as_posix() in text.read_text() for text in DOCUMENTS)
    assert name_of(path) in made_from or name_of(path).startswith("studies/finished/") or cited


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_experiment_can_be_imported(path):
    importlib.import_module(f"experiments.{name_of(path).replace('/', '.')}")


@pytest.mark.parametrize("path", [*MODULES, *RESULTS], ids=name_of)
def test_the_list_of_experiments_is_complete(path):
    name = "studies/finished/*.json" if path.parent.name == "finished" else path.relative_to(HOME).as_posix()
    assert f"`{name}`" in (HOME / "README.md").read_text()


def test_what_the_list_names_is_there():
    named = re.findall(r"`([\w/-]+\.(?:py|json))`", (HOME / "README.md").read_text())
    assert [name for name in named if not (HOME / name).is_file()] == []


def test_a_kept_result_says_where_it_comes_from(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "sys.argv", ["x", "--rounds", "3", "--texts", "/data/reviews.txt", "--eval-texts=/data/wiki.txt"]
    )
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    (tmp_path / "experiments").mkdir()
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@x"]
    script = tmp_path / "experiments" / "speed.py"
    script.write_text("")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], cwd=tmp_path, check=True, capture_output=True, text=True)
    provenance.keep(str(script), {"seconds": float("nan")})
    kept = json.loads(script.with_suffix(".json").read_text())
    assert kept == {
        "command": "python -m experiments.speed --rounds 3 --texts reviews.txt --eval-texts=wiki.txt",
        "commit": head.stdout.strip(),
        "seconds": None,
    }
    assert provenance.commit() == head.stdout.strip(), "a result that was kept is no change of the code"
    script.write_text("changed = True\n")
    assert provenance.commit() == f"{head.stdout.strip()}-dirty"


def test_only_what_stands_between_the_marks_is_replaced():
    text = "before\n<!-- a -->\nold\n<!-- /a -->\nafter\n"
    new = between(text, "a", markdown([["x", "y"], [1, "two"]]))
    assert new == "before\n<!-- a -->\n| x | y |\n| --- | --- |\n| 1 | two |\n<!-- /a -->\nafter\n"
    assert between(new, "a", "old") == text
