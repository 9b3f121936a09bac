"""Placements: which tensors stand on a grid, and what a saved model says of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

import quietformer as qf
from quietformer.config.quantization import placements
from quietformer.errors import SpecError
from quietformer.quant.calibration import plan_quantization
from tests.tiny_models import CAUSAL, PAPER, build, inputs

FAMILIES = sorted({*PAPER, *CAUSAL})
PRODUCTS = ("query", "key", "value", "probabilities")


def plan(name, placement):
    return plan_quantization(build(name), qf.QuantSpec(placement=placement), inputs(name))


@pytest.mark.parametrize("name", FAMILIES)
def test_matmul_is_linear_and_the_two_products_of_attention(name):
    both, one = plan(name, "matmul"), plan(name, "linear")
    ends = {site.name.rpartition(":")[2] for site in one.sites if site.role == "activation"}
    assert ends == {"input"}
    more = {site.name for site in both.sites} - {site.name for site in one.sites}
    assert {site.rpartition(":")[2] for site in more} == set(PRODUCTS)
    assert {site.name for site in one.sites} <= {site.name for site in both.sites}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_quantized_weight_of_a_projection_has_a_quantized_input(name):
    sites = {site.name for site in plan(name, "linear").sites}
    model = build(name)
    linears = {n for n, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D)}
    weights = {site.partition(":")[0] for site in sites if site.endswith(":weight")} & linears
    inputs_ = {site.partition(":")[0] for site in sites if site.endswith(":input")} & linears
    assert weights == inputs_ != set()


def test_residual_adds_read_fp32():
    """With inputs on coarse grids, what a residual add reads is still the exact tensor."""
    model, given = build("bert"), inputs("bert")
    norm = model.bert.encoder.layer[0].attention.output.LayerNorm
    exact, seen = [], []
    handle = model.bert.embeddings.register_forward_hook(lambda m, a, output: exact.append(output.detach()))
    qf.quantize_(model, qf.QuantSpec(placement="matmul", activation_bits=2), given)
    qf.calibrate_(model, [given])
    dense = model.bert.encoder.layer[0].attention.output.dense
    given_to_norm = norm.register_forward_pre_hook(lambda m, args: seen.append(args[0].detach()))
    outputs = []
    of_dense = dense.register_forward_hook(lambda m, a, output: outputs.append(output.detach()))
    with torch.no_grad():
        model(**given)
    for hook in (handle, given_to_norm, of_dense):
        hook.remove()
    assert torch.equal(seen[-1], outputs[-1] + exact[-1])


@pytest.mark.parametrize("placement", ["matmul", "linear"])
def test_a_saved_model_says_its_placement_and_loads(tmp_path, placement):
    model, given = build("bert"), inputs("bert")
    qf.quantize_(model, qf.QuantSpec(placement=placement), given)
    qf.calibrate_(model, [given])
    qf.save(model, tmp_path / "saved")
    loaded = qf.load(tmp_path / "saved")
    with torch.no_grad():
        assert torch.equal(loaded(**given).logits, model(**given).logits)
    assert '"version": 5' in (tmp_path / "saved" / "config.json").read_text()


def test_the_papers_placement_is_written_as_before(tmp_path):
    assert "placement" not in qf.QuantSpec().to_dict()
    assert qf.QuantSpec(**qf.QuantSpec(placement="matmul").to_dict()).placement.kind == "matmul"


def test_an_unknown_placement_is_named_with_the_known_ones():
    with pytest.raises(SpecError, match="matmul"):
        qf.QuantSpec(placement="matmull")
    assert {"paper", "matmul", "linear"} <= set(placements)
