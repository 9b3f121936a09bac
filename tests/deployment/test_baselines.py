"""Baselines on a tiny BERT: onnxruntime's files are really integers, and a baseline that fails does not stop the others."""

from __future__ import annotations

import copy
import logging
import shutil
import tempfile
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import onnx
import onnx_ir
import onnxruntime.quantization
import pytest
import torch

import quietformer as qf
from quietformer.analysis.evaluate import evaluate, reference_run
from quietformer.data.calibration_data import CalibrationData
from quietformer.deployment import baselines, onnxruntime_tools, other_tools
from quietformer.deployment.baselines import OwnExport
from quietformer.deployment.onnx_runtime import OnnxModel
from quietformer.deployment.runtimes import size_of
from quietformer.errors import QuietformerError
from quietformer.quant.insertion import quantizers
from quietformer.results.data import DataInfo
from tests.recorded_progress import RecordedProgress
from tests.tiny_models import VOCABULARY, build

ONNXRUNTIME = [
    onnxruntime_tools.STATIC, onnxruntime_tools.STATIC_PRODUCTS, onnxruntime_tools.DYNAMIC, onnxruntime_tools.DYNAMIC_CHANNELS,
]  # fmt: skip
FP32 = [baselines.FP32, baselines.FP32_OPENVINO]
PROJECTIONS = 2 * 6
"""Two layers of query, key, value, output and the two of the FFN."""


def text(seed, count=3):
    generator = torch.Generator().manual_seed(seed)
    tokens = [torch.randint(3, VOCABULARY, (4, 12), generator=generator) for _ in range(count)]
    return [{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in tokens]


@pytest.fixture(scope="module")
def model():
    """Without a head, so that its embeddings are compared, and without quantizers."""
    return build("bert").base_model


DATA = CalibrationData(text(1), lambda seed: text(0), None, DataInfo())


@pytest.fixture(scope="module")
def reference(model):
    return reference_run(model, text(1), "embedding")


@pytest.fixture(scope="module")
def quantized(model):
    mine = copy.deepcopy(model)
    qf.quantize_(mine, qf.QuantSpec(), text(0)[0])
    qf.calibrate_(mine, text(0))
    return mine


@pytest.fixture(scope="module")
def graph(quantized, tmp_path_factory):
    """Exported with sites marked, as the exporter has it: weights stand behind a Transpose."""
    return baselines.write_fp32(quantized, text(0), tmp_path_factory.mktemp("graph") / "float.onnx")


def cosine(path, reference):
    return evaluate(OnnxModel(path), text(1), "embedding", reference).measured["cosine"]


def weights(path):
    """Matrices in the file by type, tables of embeddings among them."""
    tensors = onnx.load(path).graph.initializer
    return Counter(onnx.TensorProto.DataType.Name(t.data_type) for t in tensors if len(t.dims) == 2 and 32 in t.dims)


@pytest.fixture
def own_temporary(tmp_path, monkeypatch):
    """A place of its own for temporary folders, to see what is left there."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@pytest.mark.parametrize("products_only", [False, True])
def test_static_quantization_is_of_every_product(
    graph, reference, tmp_path, products_only, own_temporary, capfd, caplog
):
    path = onnxruntime_tools.static_onnxruntime(graph, tmp_path / "static.onnx", text(0), products_only=products_only)
    assert path == tmp_path / "static.onnx"
    assert weights(path)["INT8"] >= PROJECTIONS
    kinds = Counter(node.op_type for node in onnx.load(path).graph.node)
    assert kinds["QuantizeLinear"] > PROJECTIONS
    norms = [node for node in onnx.load(path).graph.node if node.op_type == "LayerNormalization"]
    assert norms
    quantized = [node for node in norms if "Dequantize" in node.input[0] or "dequantized" in node.input[0].lower()]
    assert bool(quantized) != products_only
    scales = [t for t in onnx.load(path).graph.initializer if t.name.endswith("_scale") and sum(t.dims) > 1]
    assert bool(scales) == products_only  # which is per channel
    assert 0.9 < cosine(path, reference) < 1 - 1e-6  # close in a model without outliers, and not the original
    assert not list(own_temporary.iterdir())
    assert capfd.readouterr() == ("", "")
    assert not caplog.records
    assert logging.root.manager.disable == 0


@pytest.mark.parametrize("per_channel", [False, True])
def test_dynamic_quantization_computes_every_projection_in_integers(
    graph, reference, tmp_path, per_channel, own_temporary, capfd
):
    path = onnxruntime_tools.dynamic_onnxruntime(graph, tmp_path / "dynamic.onnx", per_channel=per_channel)
    assert sum(weights(path).values()) - weights(path)["FLOAT"] >= PROJECTIONS
    assert weights(path)["FLOAT"] == 0
    assert Counter(node.op_type for node in onnx.load(path).graph.node)["MatMulInteger"] == PROJECTIONS
    assert 0.9 < cosine(path, reference) < 1 - 1e-6
    assert not list(own_temporary.iterdir())
    assert capfd.readouterr() == ("", "")


@pytest.fixture(scope="module")
def ours(quantized, tmp_path_factory):
    """The export of the quantized model, in both runtimes."""
    folder = tmp_path_factory.mktemp("ours") / "out"
    details = qf.export_onnx(quantized, folder, text(1), options=qf.OnnxOptions(weight_type="int8", timed=False))
    return OwnExport(folder, details.runtimes, qf.QuantSpec(rules=["*:scores"]), 1.5, 1)


def test_nncf_gets_single_sequences_without_padding():
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    batch = {"input_ids": torch.arange(8).reshape(2, 4), "attention_mask": mask, "labels": mask}
    first, second = other_tools.single_sequences([batch])
    assert first["input_ids"].tolist() == [[0, 1, 2]]
    assert second["input_ids"].tolist() == [[4, 5, 6, 7]]
    assert "labels" not in first
    pixels = {"pixel_values": torch.zeros(2, 3, 4, 4)}
    assert [one["pixel_values"].shape for one in other_tools.single_sequences([pixels])] == [(1, 3, 4, 4)] * 2


def fail(*args, **kwargs):
    raise RuntimeError("it went\nwrong")


def test_tools_stand_side_by_side(quantized, reference, ours, own_temporary, monkeypatch):
    monkeypatch.setattr(torch, "compile", fail)  # takes long, and is not everywhere
    before = {name: tensor.clone() for name, tensor in quantized.state_dict().items()}
    progress = RecordedProgress()
    rows = {row.name: row for row in baselines.compare_baselines(quantized, DATA, reference, ours, progress)}
    assert [*rows, "timing all tools in turns"] == [what for what, _, _ in progress.steps]
    own = [name for name, row in rows.items() if row.ours]
    assert {"Quietformer, ONNX Runtime", "Quietformer, OpenVINO"} <= set(own)
    assert {*FP32, *ONNXRUNTIME, baselines.NNCF, baselines.TORCHAO, baselines.SMOOTH, *own} <= set(rows)
    for name, row in rows.items():
        assert row.what
        if name == baselines.TORCHAO and find_spec("torchao") is None:
            assert row.error == f"{name}: torchao is not installed; pip install quietformer[baselines]"
            continue
        assert row.error is None
        assert row.metrics.names() == list(reference.evaluation.measured)
        assert row.seconds > 0
        assert row.runtime
        assert (row.bytes is None) == (name in (baselines.TORCHAO, baselines.SMOOTH))
        assert (row.fastest_ms is None) == (name == baselines.SMOOTH)
        assert row.metrics.cosine > 0.9
        if name != baselines.FP32_OPENVINO:  # fp32 or bf16, as the processor has it
            assert (row.metrics.cosine > 1 - 1e-6) == (name == baselines.FP32)
    assert all(torch.equal(tensor, before[name]) for name, tensor in quantized.state_dict().items())
    assert {quantizer.mode for quantizer in quantizers(quantized).values()} == {"quantize"}
    assert not list(own_temporary.iterdir())


def test_tools_that_fail_or_are_missing_do_not_stop_the_others(model, graph, reference, ours, monkeypatch):
    written = []

    def write(model, batches, path):
        written.append(path)
        return Path(shutil.copy(graph, path))

    monkeypatch.setattr(baselines, "write_fp32", write)
    monkeypatch.setattr(other_tools, "migrate_", fail)
    monkeypatch.setattr(onnxruntime.quantization, "quantize_static", fail)
    monkeypatch.setattr(onnxruntime.quantization, "quantize_dynamic", fail)
    monkeypatch.setattr(other_tools, "find_spec", lambda package: None)
    rows = {row.name: row for row in baselines.compare_baselines(model, DATA, reference, ours)}
    failed = {name: row.error for name, row in rows.items() if row.error is not None}
    missing = {baselines.NNCF: "nncf", baselines.TORCHAO: "torchao"}
    assert failed == {name: f"{name}: it went wrong" for name in (*ONNXRUNTIME, baselines.SMOOTH)} | {
        name: f"{name}: {package} is not installed; pip install quietformer[baselines]"
        for name, package in missing.items()
    }
    assert all(row.metrics is None and row.fastest_ms is None for row in rows.values() if row.error)
    assert all(row.fastest_ms > 0 for row in rows.values() if not row.error)
    assert len(written) == 1
    assert not written[0].exists()
    assert not quantizers(model)


def test_a_gemm_with_a_turned_weight_is_quantized(tmp_path):
    weight = torch.randn(8, 32, generator=torch.Generator().manual_seed(0))
    of = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Gemm", ["x", "weight"], ["y"], transB=1)],
        "gemm",
        [of("x", onnx.TensorProto.FLOAT, ["batch", 32])],
        [of("y", onnx.TensorProto.FLOAT, ["batch", 8])],
        [onnx.numpy_helper.from_array(weight.numpy(), "weight")],
        value_info=[of("weight", onnx.TensorProto.FLOAT, [8, 32])],  # as torch's exporter notes it
    )
    opsets = [onnx.helper.make_opsetid("", 21)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "gemm.onnx")
    path = onnxruntime_tools.dynamic_onnxruntime(tmp_path / "gemm.onnx", tmp_path / "out.onnx")
    stored = {t.name: torch.from_numpy(onnx.numpy_helper.to_array(t).copy()) for t in onnx.load(path).graph.initializer}
    integers, scale = stored["weight_quantized"], stored["weight_scale"]
    assert integers.dtype == torch.int8
    # What is in the file, not what the product gives: without VNNI pairs of products overflow, and this graph's do.
    assert float((integers.T * scale - weight).abs().max()) <= 0.5001 * float(scale)
    assert OnnxModel(path)({"x": torch.ones(4, 32)})["y"].shape == (4, 8)


def test_graphs_with_weights_in_a_second_file(graph, reference, tmp_path, monkeypatch, own_temporary):
    expected = cosine(onnxruntime_tools.dynamic_onnxruntime(graph, tmp_path / "small.onnx"), reference)
    monkeypatch.setattr(onnxruntime_tools, "LARGE", 0)
    (tmp_path / "large").mkdir()
    onnx_ir.save(onnx_ir.load(graph), tmp_path / "large" / "float.onnx", external_data="float.onnx.data")
    for write in (
        onnxruntime_tools.dynamic_onnxruntime,
        lambda *paths: onnxruntime_tools.static_onnxruntime(*paths, text(0)),
    ):
        path = write(tmp_path / "large" / "float.onnx", tmp_path / "out.onnx")
        assert path.with_name("out.onnx.data").exists()
        assert cosine(path, reference) == pytest.approx(expected, abs=0.05)
        assert size_of(path) > path.stat().st_size
    assert not list(own_temporary.iterdir())


def test_errors_are_one_line_that_names_the_baseline(graph, tmp_path):
    garbage = tmp_path / "garbage.onnx"
    garbage.write_bytes(b"no graph")
    out = tmp_path / "out.onnx"
    for call, name in (
        (lambda: onnxruntime_tools.dynamic_onnxruntime(garbage, out), onnxruntime_tools.DYNAMIC),
        (lambda: onnxruntime_tools.static_onnxruntime(garbage, out, text(0)), onnxruntime_tools.STATIC),
        (lambda: onnxruntime_tools.static_onnxruntime(graph, out, []), onnxruntime_tools.STATIC),
        (lambda: onnxruntime_tools.dynamic_onnxruntime(Path("nowhere.onnx"), out), onnxruntime_tools.DYNAMIC),
    ):
        with pytest.raises(QuietformerError, match=f"^{name}: [^\n]+$"):
            call()
    assert not out.exists()
    with pytest.raises(QuietformerError, match="there is no folder"):
        onnxruntime_tools.dynamic_onnxruntime(graph, tmp_path / "nowhere" / "out.onnx")
