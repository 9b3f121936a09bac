"""A sample of architectures from end to end, and the table of all of them kept complete."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers

from tests.families.check import check
from tests.families.tiny import architectures

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = (
    "bert", "opt", "vit", "llama", "qwen3", "mistral", "gpt2", "smollm3", "roberta", "modernbert", "distilbert", "deit",
    "dinov2", "clip", "siglip", "t5", "whisper", "bart", "gemma2", "gpt_neox", "phi3", "swin", "mixtral", "deepseek_v3",
)  # fmt: skip


@pytest.mark.parametrize("name", SAMPLE)
def test_architecture(name):
    verdict = check(name)
    assert verdict.status == "passed", verdict.reason


@pytest.mark.parametrize("name", ["llama", "t5", "vit"])
def test_every_variant_works_in_an_architecture(name):
    verdict = check(name, variants=True)
    assert verdict.status == "passed", verdict.reason


@pytest.mark.parametrize("name", ["gpt_oss", "granite_swa", "vjepa2"])
def test_what_computes_more_than_softmax_is_refused(name):
    assert check(name).status == "refused"


def test_the_table_is_complete_and_nothing_in_it_failed():
    figures = json.loads((ROOT / "experiments" / "families.json").read_text())
    rows = {row["name"]: row["status"] for row in figures["architectures"]}
    assert "failed" not in rows.values()
    assert sum(status == "passed" for status in rows.values()) >= 120
    if figures["versions"]["transformers"] == transformers.__version__:
        assert sorted(rows) == architectures()
