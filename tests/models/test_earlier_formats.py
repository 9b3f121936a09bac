"""Folders that earlier releases saved load and compute what they computed then."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import quietformer as qf
from quietformer.config.model_changes import FORMAT_VERSION
from tests.tiny_models import logits

SAVED = Path(__file__).parent / "saved"
FOLDERS = sorted(path.parent for path in SAVED.glob("format_*/*/config.json"))


def format_of(folder):
    return json.loads((folder / "config.json").read_text())["quantization_config"]["version"]


def test_every_format_is_there():
    assert {format_of(folder) for folder in FOLDERS} == {*range(1, FORMAT_VERSION + 1)}
    assert all(folder.parent.name == f"format_{format_of(folder)}" for folder in FOLDERS)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_a_folder_gives_the_logits_of_the_release_that_saved_it(folder, tmp_path):
    given = load_file(folder / "expected.safetensors")
    expected = given.pop("logits")
    model = qf.load(folder)
    torch.testing.assert_close(logits(model, given), expected, rtol=0, atol=1e-5)
    qf.save(model, tmp_path / "again")
    assert torch.equal(logits(qf.load(tmp_path / "again"), given), logits(model, given))
