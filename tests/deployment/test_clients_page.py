"""The code of docs/clients.md runs, wherever the client that it is about is installed."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

import quietformer as qf
from quietformer.config.quantization import placements
from quietformer.deployment.compressed_weights import write_compressed
from quietformer.deployment.shipment import plain_config, write_json
from quietformer.deployment.target import every_target
from tests.deployment.exports import TEXTS

PAGE = (Path(__file__).parents[2] / "docs" / "clients.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def needed(code: str) -> set[str]:
    """Packages that a block needs."""
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(code))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    extra = {"optimum"} if "backend=" in code else {"compressed_tensors"} if "FOLDER-compressed" in code else set()
    return imported | extra


@pytest.fixture(scope="module")
def compressed(sentence_encoder, tmp_path_factory):
    model, out = qf.open_model(sentence_encoder), tmp_path_factory.mktemp("out") / "compressed"
    batch = dict(AutoTokenizer.from_pretrained(sentence_encoder)(TEXTS[:4], padding=True, return_tensors="pt"))
    qf.quantize_(model, qf.QuantSpec(placement=placements["linear"]()), batch)
    qf.calibrate_(model, [batch])
    described = write_compressed(model, out)
    write_json(out / "config.json", plain_config(model) | {"quantization_config": described})
    return out


@pytest.mark.parametrize("code", BLOCKS, ids=[block.split("\n")[0][:40] for block in BLOCKS])
def test_the_code_of_the_page_runs(code, exported_encoder, request):
    if missing := [name for name in needed(code) if importlib.util.find_spec(name) is None]:
        compile(code, "clients.md", "exec")
        pytest.skip(f"{missing[0]} is not installed")
    if "FOLDER-compressed" in code:
        code = code.replace("FOLDER-compressed", str(request.getfixturevalue("compressed")))
    found = {}
    exec(code.replace("FOLDER", str(exported_encoder)).replace("model_fp32.onnx", "onnx/model.onnx"), found)
    if "embeddings" in found:
        assert torch.as_tensor(found["embeddings"]).shape[-1] == 32


def test_every_target_has_a_line_in_the_table():
    rows = re.findall(r"^\| `(\w[\w.-]+)` \|", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted(target.name for target in every_target())
