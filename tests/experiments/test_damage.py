"""Counts of damage and kills that are run in pieces add up to those of one run."""

from __future__ import annotations

from experiments.damage import fuzz, kills
from tests.fuzz.runner import Outcome

MADE = {"command": "python -m experiments.damage.fuzz", "commit": "0" * 40}

OUTCOMES = [
    Outcome("text: bytes", 0, "refused", "", 0.1),
    Outcome("text: bytes", 1, "accepted", "", 0.1),
    Outcome("audio: bytes", 0, "hang", "", 0.1),
    Outcome("text: bytes", 2, "refused", "", 0.1),
]


def test_cases_in_pieces_are_counted_as_in_one_run():
    once = fuzz.counted(OUTCOMES, {}, MADE)
    pieces = fuzz.counted(OUTCOMES[2:], fuzz.counted(OUTCOMES[:2], {}, MADE), MADE)
    assert {key: pieces[key] for key in ("cases", "bad", "classes")} == {
        "cases": 4, "bad": 1, "classes": {"audio: bytes": {"hang": 1}, "text: bytes": {"refused": 2, "accepted": 1}},
    }  # fmt: skip
    assert fuzz.table(pieces) == fuzz.table(once)
    assert [piece["cases"] for piece in pieces["pieces"]] == [2, 2]
    assert "| text | 1 | 3 | 2 | 0 | 1 | 0 |" in fuzz.table(once)


def test_kills_in_pieces_are_counted_as_in_one_run():
    ten = {"train": vars(kills.Counts(kills=10, at_file_operations=5, runs=6, same_weights=6))}
    five = {
        "train": vars(kills.Counts(kills=5, runs=3, same_weights=2)),
        "convert": vars(kills.Counts(kills=1, runs=1)),
    }
    made = kills.added(five, kills.added(ten, {}, MADE), MADE)
    assert made["commands"]["train"]["kills"] == 15
    assert made["all"]["kills"] == 16
    assert made["all"]["runs"] - made["all"]["same_weights"] == 2
    assert list(made["commands"]) == ["convert", "train"]
    assert "| all | 16 | 10 | 8 | 0 | 0 |" in kills.table(made)
