"""Real INT8 with scales per token, and with signed activations: products of integers that give what the simulation gives."""

from __future__ import annotations

from collections import Counter

import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto

import quietformer as qf
from quietformer.deployment.onnx_runtime import OnnxModel
from quietformer.deployment.processor import instruction_set
from quietformer.quant.insertion import quantizers
from tests.tiny_models import build, inputs, logits

CASES = {
    "token": ("bert", {"placement": "matmul", "granularity": "token", "per_channel": True}),
    "token-linear": ("gpt2", {"placement": "linear", "granularity": "token", "rules": ("0.ffn_output.input=12",)}),
    "token-paper": ("llama", {"granularity": "token", "activation_bits": 6}),
    "symmetric": ("bert", {"placement": "matmul", "activation_symmetric": True, "per_channel": True}),
    "symmetric-paper": ("opt", {"activation_symmetric": True, "activation_bits": 6, "rules": ("*.ffn_output=12",)}),
}


@pytest.fixture(scope="module", params=sorted(CASES))
def exported(request, tmp_path_factory):
    name, fields = CASES[request.param]
    model, batch = build(name), inputs(name)
    qf.quantize_(model, qf.QuantSpec(**fields), batch)
    qf.calibrate_(model, [batch])
    folder = tmp_path_factory.mktemp("export") / "model"
    result = qf.export_onnx(model, folder, [batch], options=qf.OnnxOptions(timed=False))
    return request.param, model, name, folder, result


def test_outputs_are_those_of_the_simulation(exported):
    case, model, name, folder, _ = exported
    batch = inputs(name)
    shorter = {key: value[:1] if name == "vit" else value[:1, :7] for key, value in batch.items()}
    # Signed weights overflow without VNNI, so the graph is then judged by the products of unoptimized fp32.
    overflows = case.startswith("symmetric") and "without VNNI" in instruction_set()
    for given in (batch, shorter):
        expected = logits(model, given)
        got = unoptimized(folder, given) if overflows else OnnxModel(folder / "model.onnx")(given)["logits"]
        cosine = torch.nn.functional.cosine_similarity(got.double(), expected.double(), dim=-1)
        assert float(cosine.mean()) > 0.9995, case


def unoptimized(folder, given):
    """The graph node by node as it is written: what is quantized is dequantized again before it is multiplied."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    feeds = {one.name: given[one.name].numpy() for one in session.get_inputs()}
    return torch.from_numpy(session.run(["logits"], feeds)[0])


def test_every_product_is_one_of_integers(exported, tmp_path):
    """In what ONNX Runtime makes of the graph: no weight that was quantized is multiplied in fp32."""
    case, model, _, folder, _ = exported
    if case == "symmetric-paper":
        return  # ONNX Runtime multiplies signed integers that several nodes read in fp32 (docs/quantize.md)
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.optimized_model_filepath = 3, str(tmp_path / "run.onnx")
    onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    kinds = Counter(node.op_type for node in onnx.load(tmp_path / "run.onnx").graph.node)
    integer = sum(kinds[kind] for kind in ("MatMulIntegerToFloat", "QLinearMatMul", "MatMulInteger", "QGemm"))
    grids = {site: quantizer.grid for site, quantizer in quantizers(model).items()}
    linear = [site.partition(":")[0] for site in grids if site.endswith(":weight")]
    linear = [owner for owner in linear if type(model.get_submodule(owner)).__name__ in ("Linear", "Conv1D")]
    wide = sum(grids.get(f"{owner}:input") is not None and grids[f"{owner}:input"].bits > 8 for owner in linear)
    assert integer >= len(linear) - wide, case


def test_signed_activations_have_the_zero_point_nought_and_signed_weights(exported):
    case, _, _, folder, result = exported
    if not case.startswith("symmetric"):
        return
    graph = onnx.load(folder / "model.onnx").graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    zeros = [stored[node.input[2]] for node in graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert len(zeros) > 10
    assert {zero.data_type for zero in zeros} <= {TensorProto.INT8, TensorProto.INT16}
    assert not any(onnx.numpy_helper.to_array(zero).any() for zero in zeros)
    assert result.weight_type == "int8"


def test_query_key_and_value_share_the_scales_of_their_tokens(exported):
    case, model, _, folder, _ = exported
    if case != "token":
        return
    graph = onnx.load(folder / "model.onnx").graph
    reaches = [node for node in graph.node if node.op_type == "ReduceMax" and "reach" in node.name]
    per_token = [site for site, quantizer in quantizers(model).items() if quantizer.grid.token]
    layers = len(model.bert.encoder.layer)
    assert len(reaches) == len(per_token) - 2 * layers
