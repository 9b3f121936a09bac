"""No report is written over what the command reads, and nothing that was typed is empty."""

from __future__ import annotations

import os

import pytest

from tests.tiny_models import build


@pytest.fixture
def place(tmp_path, monkeypatch):
    build("bert").save_pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_text("Some text that somebody wrote.\n")
    os.symlink("text.txt", tmp_path / "alias.txt")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _contents(place):
    return {str(path): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}


INSPECT = ("inspect", "model", "--texts", "text.txt")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*INSPECT, "--json", "text.txt"), "--json would write text.txt"),
        ((*INSPECT, "--card", "./alias.txt"), "takes as text.txt"),
        ((*INSPECT, "--json", "model/config.json"), "takes as model"),
        ((*INSPECT, "--page", "model/config.html"), "--page would write model/config.json"),
        ((*INSPECT, "--page", "one.html", "--card", "one.html"), "each needs its own"),
        (("convert", "model", "out", "--gate", "linear", "--json", "out"), "takes as out"),
        (("paper", "--json", "one.html", "--html", "./one.html"), "each needs its own"),
        (("inspect", "model", "--dataset", ""), "--dataset is empty"),
        ((*INSPECT, "--tokenizer="), "--tokenizer is empty"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_lost(place, run, words, message):
    before = _contents(place)
    code, _, errors = run(*words)
    assert (code, errors.count("\n")) == (2, 1)
    assert message in errors
    assert _contents(place) == before


def test_a_report_may_be_written_again_and_beside_a_model(place, run):
    words = ("convert", "model", "out", "--gate", "linear", "--overwrite", "--json", "model/report.json")
    assert run(*words)[0] == run(*words)[0] == 0


def test_a_private_repository_that_is_not_made_is_a_mistake(place, run):
    code, _, errors = run("export", "model", "out", "--private")
    assert (code, errors.count("\n")) == (2, 1)
    assert "--push" in errors
    assert not (place / "out").exists()
