"""Baselines on a tiny BERT: onnxruntime's files are really integers, and a baseline that fails does not stop the others."""

from __future__ import annotations

import copy
import logging
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import onnx
import onnx_ir
import onnxruntime.quantization
import pytest
import torch

import quietformer as qf
from quietformer.analysis.evaluate import evaluate, reference_run
from quietformer.data.calibration_data import CalibrationData
from quietformer.deployment import baselines
from quietformer.deployment.onnx_runtime import OnnxModel
from quietformer.errors import QuietformerError
from quietformer.quant.insertion import quantizers
from quietformer.results.data import DataInfo
from tests.recorded_progress import RecordedProgress
from tests.tiny_models import VOCABULARY, build

NAMES = [baselines.STATIC, baselines.STATIC_CHANNELS, baselines.DYNAMIC, baselines.SMOOTH, baselines.PUBLISHED]
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
    return baselines._write_fp32(quantized, text(0), tmp_path_factory.mktemp("graph") / "float.onnx")


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


@pytest.mark.parametrize("per_channel", [False, True])
def test_static_quantization_is_of_every_weight(graph, reference, tmp_path, per_channel, own_temporary, capfd, caplog):
    path = baselines.static_onnxruntime(graph, tmp_path / "static.onnx", text(0), per_channel=per_channel)
    assert path == tmp_path / "static.onnx"
    assert weights(path)["INT8"] >= PROJECTIONS
    assert weights(path)["FLOAT"] == 0
    kinds = Counter(node.op_type for node in onnx.load(path).graph.node)
    assert kinds["QuantizeLinear"] > PROJECTIONS
    scales = [t for t in onnx.load(path).graph.initializer if t.name.endswith("_scale") and sum(t.dims) > 1]
    assert bool(scales) == per_channel
    assert 0.9 < cosine(path, reference) < 1 - 1e-6  # close in a model without outliers, and not the original
    assert not list(own_temporary.iterdir())
    assert capfd.readouterr() == ("", "")
    assert not caplog.records
    assert logging.root.manager.disable == 0


def test_dynamic_quantization_is_of_every_weight(graph, reference, tmp_path, own_temporary, capfd):
    path = baselines.dynamic_onnxruntime(graph, tmp_path / "dynamic.onnx")
    assert sum(weights(path).values()) - weights(path)["FLOAT"] >= PROJECTIONS
    assert weights(path)["FLOAT"] == 0
    assert Counter(node.op_type for node in onnx.load(path).graph.node)["MatMulInteger"] == PROJECTIONS
    assert 0.9 < cosine(path, reference) < 1 - 1e-6
    assert not list(own_temporary.iterdir())
    assert capfd.readouterr() == ("", "")


def test_baselines_stand_side_by_side(quantized, reference, own_temporary):
    before = {name: tensor.clone() for name, tensor in quantized.state_dict().items()}
    progress = RecordedProgress()
    spec = qf.QuantSpec(rules=["*:scores"])  # a baseline takes no rules
    rows = baselines.compare_baselines(quantized, DATA, reference, spec, progress)
    assert [row.name for row in rows] == NAMES == [what for what, _, _ in progress.steps]
    for row in rows:
        assert row.error is None
        assert row.metrics.names() == list(reference.evaluation.measured)
        assert 0.9 < row.metrics.cosine < 1 - 1e-6
        assert row.seconds > 0
        assert row.what
        assert (row.bytes is None) == row.name.startswith("Smooth")
    figures = {row.name: row.metrics.cosine for row in rows}
    assert figures[baselines.PUBLISHED] > figures[baselines.SMOOTH]  # less is quantized
    assert all(torch.equal(tensor, before[name]) for name, tensor in quantized.state_dict().items())
    assert {quantizer.mode for quantizer in quantizers(quantized).values()} == {"quantize"}
    assert not list(own_temporary.iterdir())


def test_without_a_graph_one_is_exported_once(model, graph, reference, monkeypatch):
    written = []

    def write(model, batches, path):
        written.append(path)
        return shutil.copy(graph, path)

    monkeypatch.setattr(baselines, "_write_fp32", write)
    monkeypatch.setattr(baselines, "migrate_", fail)
    rows = baselines.compare_baselines(model, DATA, reference, qf.QuantSpec())
    assert [row.name for row in rows if row.error is None] == NAMES[:3]
    assert len(written) == 1
    assert not written[0].exists()
    assert not quantizers(model)


def fail(*args, **kwargs):
    raise RuntimeError("it went\nwrong")


def test_a_failing_baseline_does_not_stop_the_others(model, reference, monkeypatch):
    monkeypatch.setattr(onnxruntime.quantization, "quantize_static", fail)
    monkeypatch.setattr(onnxruntime.quantization, "quantize_dynamic", fail)
    rows = baselines.compare_baselines(model, DATA, reference, qf.QuantSpec())
    assert [row.error for row in rows] == [*(f"{name}: it went wrong" for name in NAMES[:3]), None, None]
    assert all(row.metrics is None and row.seconds is None for row in rows[:3])
    assert all(row.metrics.cosine > 0.9 for row in rows[3:])


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
    path = baselines.dynamic_onnxruntime(tmp_path / "gemm.onnx", tmp_path / "out.onnx")
    stored = {t.name: torch.from_numpy(onnx.numpy_helper.to_array(t).copy()) for t in onnx.load(path).graph.initializer}
    integers, scale = stored["weight_quantized"], stored["weight_scale"]
    assert integers.dtype == torch.int8
    # What is in the file, not what the product gives: without VNNI pairs of products overflow, and this graph's do.
    assert float((integers.T * scale - weight).abs().max()) <= 0.5001 * float(scale)
    assert OnnxModel(path)({"x": torch.ones(4, 32)})["y"].shape == (4, 8)


def test_graphs_with_weights_in_a_second_file(graph, reference, tmp_path, monkeypatch, own_temporary):
    expected = cosine(baselines.dynamic_onnxruntime(graph, tmp_path / "small.onnx"), reference)
    monkeypatch.setattr(baselines, "LARGE", 0)
    (tmp_path / "large").mkdir()
    onnx_ir.save(onnx_ir.load(graph), tmp_path / "large" / "float.onnx", external_data="float.onnx.data")
    for write in (baselines.dynamic_onnxruntime, lambda *paths: baselines.static_onnxruntime(*paths, text(0))):
        path = write(tmp_path / "large" / "float.onnx", tmp_path / "out.onnx")
        assert path.with_name("out.onnx.data").exists()
        assert cosine(path, reference) == pytest.approx(expected, abs=0.05)
        assert baselines._bytes(path) > path.stat().st_size
    assert not list(own_temporary.iterdir())


def test_errors_are_one_line_that_names_the_baseline(graph, tmp_path):
    garbage = tmp_path / "garbage.onnx"
    garbage.write_bytes(b"no graph")
    out = tmp_path / "out.onnx"
    for call, name in (
        (lambda: baselines.dynamic_onnxruntime(garbage, out), baselines.DYNAMIC),
        (lambda: baselines.static_onnxruntime(garbage, out, text(0)), baselines.STATIC),
        (lambda: baselines.static_onnxruntime(graph, out, []), baselines.STATIC),
        (lambda: baselines.dynamic_onnxruntime(Path("nowhere.onnx"), out), baselines.DYNAMIC),
    ):
        with pytest.raises(QuietformerError, match=f"^{name}: [^\n]+$"):
            call()
    assert not out.exists()
    with pytest.raises(QuietformerError, match="there is no folder"):
        baselines.dynamic_onnxruntime(graph, tmp_path / "nowhere" / "out.onnx")
