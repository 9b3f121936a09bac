"""Some of the damage of `make fuzz`: 0 tracebacks, 0 hangs, 0 crashes, 0 silent acceptances."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.fuzz import mutations
from tests.fuzz.__main__ import Effort, fuzz
from tests.fuzz.case import EVERY, Damage, Expected, Subject
from tests.fuzz.runner import GOOD, Fuzzer, cases

SPARED = (
    "killed run", "study folder", "finished run", "audio", "images", "options", "quantized", "every option", "sentence",
    "exported", "causal", "vision", "speech", "GGUF", "tables",
)  # fmt: skip
"""Subjects of which every fourth class is taken here; `make fuzz` has all of them alike."""

QUICK = ("recipe", "plain", "sharded")
"""Subjects that are damaged twice."""

SEED = 20_000


@pytest.mark.xdist_group("fuzz")
def test_damage_is_told_or_changes_nothing():
    chosen = [case for case in cases(len(EVERY), SEED) if not case[0].title.startswith(SPARED)]
    chosen += [
        case for place, case in enumerate(c for c in cases(len(EVERY), SEED) if c not in chosen) if not place % 4
    ]
    again = [(damage, SEED + 1) for damage, _ in chosen if any(name in damage.title for name in QUICK)]
    outcomes = fuzz(chosen + again, Effort())
    assert len(outcomes) >= 200
    assert [vars(one) for one in outcomes if one.bad] == []
    assert {one.kind for one in outcomes} == set(GOOD)


def test_the_fuzzer_tells_what_it_is_for(tmp_path, monkeypatch):
    """Each kind of failure is called by its name; otherwise a fuzzer that finds nothing would prove nothing."""
    from tests.fuzz import runner

    (tmp_path / "originals").mkdir()
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(runner, "SECONDS", 3.0)
    subject = Subject(
        "test", lambda originals, place: None, lambda place: ["variants"], lambda place: Path("x").exists()
    )
    fuzzer = Fuzzer(tmp_path / "originals", tmp_path / "scratch")

    def outcome(expected, apply):
        return fuzzer.run(Damage(subject, "damage", expected, apply), 0).kind

    def broken(error):
        def apply(place, draw):
            def variants():
                raise error

            monkeypatch.setattr("quietformer.workflows.listings.variants", variants)

        return apply

    def crash(place, draw):
        import ctypes
        import faulthandler

        faulthandler.disable()  # pytest's
        ctypes.string_at(0)

    def hang(place, draw):
        while True:
            pass

    def wait(place, draw):
        time.sleep(1000)

    assert outcome(Expected.ANY, lambda place, draw: None) == "accepted"
    assert outcome(Expected.SAME, lambda place, draw: None) == "same"
    assert outcome(Expected.REFUSED, lambda place, draw: None) == "silent"
    assert outcome(Expected.ANY, lambda place, draw: ["variants", "--json", "no/such/folder"]) == "refused"
    assert outcome(Expected.ANY, lambda place, draw: ["variants", "--debug", "--json", "no/such"]) == "traceback"
    assert outcome(Expected.ANY, broken(KeyError("x"))) == "unexpected"
    assert outcome(Expected.ANY, crash) == "crash"
    assert outcome(Expected.ANY, hang) == "hang"
    monkeypatch.setattr(runner, "PATIENCE", 0.2)
    assert outcome(Expected.ANY, wait) == "hang"


def test_every_mutation_changes_something():
    import random

    for seed in range(50):
        draw = random.Random(seed)
        content = {"a": 1, "b": {"c": [1, 2, {"d": "x"}]}, "e": 0.5}
        assert mutations.mutated(content, draw) is not content
        assert content == {"a": 1, "b": {"c": [1, 2, {"d": "x"}]}, "e": 0.5}
        for kind in (mutations.truncate, mutations.flip, mutations.insert, mutations.append):
            assert kind(b"some bytes of a file", draw) != b"some bytes of a file"
