"""Lean graphs compute what the plain ones do, with less."""

from __future__ import annotations

import contextlib
from collections import Counter

import onnx_ir as ir
import pytest
import torch

import quietformer as qf
from quietformer.deployment import onnx_graph
from quietformer.deployment.onnx_graph import integer_graph
from quietformer.deployment.onnx_runtime import OnnxModel
from quietformer.deployment.torch_program import marked_program, output_name
from quietformer.quant.insertion import quantizers
from quietformer.transforms.smoothquant import migrate_
from tests.tiny_models import build, inputs

FAMILIES = ("bert", "opt", "vit", "llama", "gpt2")


@contextlib.contextmanager
def plain(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(onnx_graph, "make_lean_", lambda model: None)
        yield


def written(name, folder, monkeypatch, placement="matmul", *, smooth=False):
    """The same quantized model as a plain and as a lean graph."""
    model, given = build(name), inputs(name)
    if smooth:
        assert migrate_(model, [given], 0.7).divided
    qf.quantize_(model, qf.QuantSpec(placement=placement, per_channel=True), given)
    qf.calibrate_(model, [given])
    marked = marked_program(model, given, output_name(model, given))
    with plain(monkeypatch):
        ir.save(integer_graph(marked, quantizers(model), signed_weights=False), folder / "plain.onnx")
    ir.save(integer_graph(marked, quantizers(model), signed_weights=False), folder / "lean.onnx")
    return folder / "plain.onnx", folder / "lean.onnx"


def agree(one, other, given):
    before, after = OnnxModel(one)(given), OnnxModel(other)(given)
    output = OnnxModel(one).output
    return torch.nn.functional.cosine_similarity(
        before[output].double().flatten(), after[output].double().flatten(), dim=0
    )


def kinds(path):
    return Counter(node.op_type for node in ir.load(path).graph)


@pytest.mark.parametrize("placement", ["matmul", "paper"])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_function_stays(name, placement, tmp_path, monkeypatch):
    one, other = written(name, tmp_path, monkeypatch, placement)
    given = inputs(name, padded=name != "vit")
    # Rounding in fp32 moves a value to the next step of a grid now and then.
    assert agree(one, other, given) > 0.9999


def test_smoothing_multiplies_and_does_not_divide(tmp_path, monkeypatch):
    one, other = written("bert", tmp_path, monkeypatch, smooth=True)
    assert kinds(one)["Div"] > kinds(other)["Div"]
    assert agree(one, other, inputs("bert", padded=True)) > 0.9999


def test_rows_are_masked_after_a_product_in_fp32_too(tmp_path, monkeypatch):
    one, other = written("bert", tmp_path, monkeypatch, placement="linear")
    softmaxes = [node for node in ir.load(other).graph if node.op_type == "Softmax"]
    assert softmaxes
    assert all(user.op_type == "MatMul" for node in softmaxes for user, _ in node.outputs[0].uses())
    given = inputs("bert", padded=True)
    given["attention_mask"][0] = 0  # a text of padding alone: no row of it sees a key
    assert agree(one, other, given) > 0.9999


def test_query_key_and_value_share_one_quantized_input(tmp_path, monkeypatch):
    one, other = written("bert", tmp_path, monkeypatch)
    layers = build("bert").config.num_hidden_layers
    assert kinds(one)["QuantizeLinear"] - kinds(other)["QuantizeLinear"] == 2 * layers


def test_scores_are_not_multiplied_and_rows_are_masked_after_the_product(tmp_path, monkeypatch):
    _, lean = written("bert", tmp_path, monkeypatch)
    graph = ir.load(lean).graph
    for node in graph:
        if node.op_type == "Softmax":
            sources = [value.producer() for value in node.inputs if value is not None]
            assert not any(source is not None and source.op_type == "Mul" for source in sources)
            assert all(user.op_type == "QuantizeLinear" for user, _ in node.outputs[0].uses())


@pytest.mark.parametrize("name", ["bert", "vit"])
def test_onnxruntime_finds_no_add_to_fuse_with_a_norm(name, tmp_path, monkeypatch):
    plain_path, lean = written(name, tmp_path, monkeypatch)

    def adds_before_norms(path):
        norms = [node for node in ir.load(path).graph if node.op_type == "LayerNormalization"]
        sources = [node.inputs[0].producer() for node in norms]
        adds = [source for source in sources if source is not None and source.op_type == "Add"]
        return sum(all(value.const_value is None for value in add.inputs) for add in adds)  # residual adds

    assert adds_before_norms(plain_path) > 0
    assert adds_before_norms(lean) == 0
