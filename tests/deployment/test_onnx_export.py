"""Real INT8: the graph computes what the simulation does, its integers are the calibrated ones, its folder is whole."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from transformers import AlbertConfig, AlbertModel

import quietformer as qf
from quietformer.config.options.export import OnnxOptions
from quietformer.deployment import onnx_export as export_module
from quietformer.deployment import traced_graphs
from quietformer.deployment.onnx_graph import integer_graph
from quietformer.deployment.onnx_runtime import OnnxModel
from quietformer.deployment.openvino_runtime import OpenVinoModel
from quietformer.deployment.processor import instruction_set
from quietformer.deployment.torch_program import marked_program
from quietformer.errors import QuietformerError
from quietformer.quant.affine import quantize
from quietformer.quant.insertion import quantizers
from tests.tiny_models import VARIANTS, build, inputs

CASES = {  # every normalizer and gate that the paper or its kin name, and every family's way of writing itself
    "bert": ("bert", "clipped_softmax", {}),
    "bert-gated": ("bert", "gate-linear", {"per_channel": True, "gate": True}),
    "bert-softmax1": ("bert", "softmax1", {"activation_bits": 6, "weight_bits": 4}),
    "opt": ("opt", "clipped-row", {"rules": ("*.ffn_output=16", "*.scores=12", "0.context")}),
    "llama": ("llama", "gate-mlp", {}),
    "gpt2": ("gpt2", "learned_sink", {"per_channel": True}),
    "vit": ("vit", "gate-all_heads", {"head": True}),
    "opt-entmax15": ("opt", "entmax15", {}),
    "llama-value-state": ("llama", "gate-value_state", {"gate": True}),
}

RUNS = {("torch", "fp32"), ("onnxruntime", "fp32"), ("onnxruntime", "int8"), ("openvino", "int8")}


@pytest.fixture(scope="module", params=sorted(CASES))
def exported(request, tmp_path_factory):
    name, variant, fields = CASES[request.param]
    model = build(name)
    torch.manual_seed(0)
    qf.apply_attention_(model, VARIANTS[variant])
    qf.quantize_(model, qf.QuantSpec(**fields), inputs(name))
    qf.calibrate_(model, [inputs(name)])
    folder = tmp_path_factory.mktemp("export") / "model"
    batches = [inputs(name, padded=name != "vit")]
    result = qf.export_onnx(
        model, folder, batches, options=qf.OnnxOptions(weight_type="uint8", keep_fp32=True, threads=1)
    )
    return model, name, folder, result


def other_sizes(name):
    """A batch and length the exporter has never seen."""
    if name == "vit":
        return {"pixel_values": torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(5))}
    tokens = torch.randint(3, 99, (3, 14), generator=torch.Generator().manual_seed(5))
    mask = torch.ones_like(tokens)
    mask[2, -4:] = 0
    return {"input_ids": tokens, "attention_mask": mask}


def rows(given, output):
    flat = output.reshape(-1, output.shape[-1])
    mask = given.get("attention_mask")
    return flat if mask is None or mask.numel() != len(flat) else flat[mask.bool().flatten()]


def test_floating_point_onnx_equals_torch_for_any_batch_and_length(exported):
    model, name, folder, _ = exported
    from quietformer.quant.calibration import full_precision

    for given in (inputs(name), other_sizes(name)):
        with torch.no_grad(), full_precision(model):
            expected = rows(given, model(**given).logits)
        got = rows(given, OnnxModel(folder / "model_fp32.onnx")(given)["logits"])
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


def test_integers_agree_with_the_simulation_for_any_batch_and_length(exported):
    model, name, folder, result = exported
    for given in (inputs(name), other_sizes(name)):
        with torch.no_grad():
            expected = rows(given, model(**given).logits)
        got = rows(given, OnnxModel(folder / "model.onnx")(given)["logits"])
        cosine = torch.nn.functional.cosine_similarity(got.double(), expected.double(), dim=-1)
        assert float(cosine.mean()) > 0.999
    assert result.agreement.cosine > 0.999


def test_openvino_gives_what_onnxruntime_gives_for_any_batch_and_length(exported):
    _, name, folder, result = exported
    openvino = OpenVinoModel(folder / "openvino" / "openvino_model.xml", threads=1, precision="f32")
    assert openvino.precision == "f32"
    least = 0.9 if "without VNNI" in instruction_set() else 0.999  # signed weights overflow there
    for given in (inputs(name), other_sizes(name)):
        expected = rows(given, OnnxModel(folder / "model.onnx")(given)["logits"])
        got = rows(given, openvino(given)["logits"])
        cosine = torch.nn.functional.cosine_similarity(got.double(), expected.double(), dim=-1)
        assert float(cosine.mean()) > least
    written = {one.runtime: one for one in result.runtimes}["openvino"]
    assert (written.agreement_in_f32 or written.agreement).cosine > least
    assert written.agreement.cosine > min(least, 0.99)
    files = [folder / "openvino" / f"openvino_model.{suffix}" for suffix in ("xml", "bin")]
    assert written.bytes == sum(file.stat().st_size for file in files)


def test_every_quantizer_in_the_file_is_the_calibrated_one(exported):
    model, _, folder, _ = exported
    graph = onnx.load(folder / "model.onnx").graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    placed = quantizers(model)
    assert len(placed) > 20
    for site, quantizer in placed.items():
        if f"{site}.scale" not in stored:  # shared: another site reads the same tensor on the same grid
            assert any(
                np.array_equal(one.scale, quantizer.scale)
                for other, one in placed.items()
                if f"{other}.scale" in stored
            )
            continue
        assert np.array_equal(stored[f"{site}.scale"], quantizer.scale.numpy()), site
        zero_point = stored.get(f"{site}.zero_point", stored.get(f"{site}.zero_point.real"))
        assert np.array_equal(zero_point.astype(np.int64), quantizer.zero_point.numpy()), site
        if not site.endswith(":weight"):
            nodes = [n for n in graph.node if n.op_type == "QuantizeLinear" and n.input[1] == f"{site}.scale"]
            assert len(nodes) == 1, site  # one quantizer, after the clip


def test_weights_are_stored_as_integers_only(exported):
    model, _, folder, _ = exported
    graph = onnx.load(folder / "model.onnx").graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for site, quantizer in quantizers(model).items():
        if not site.endswith(":weight"):
            continue
        weight = model.get_submodule(site.removesuffix(":weight")).weight.detach()
        grid = quantizer.grid
        expected = quantize(weight, quantizer.scale, quantizer.zero_point, bits=grid.bits, axis=grid.axis).numpy()
        found = [array for name, array in stored.items() if name.startswith(f"{site}.integers")]
        assert found, site
        assert any(np.array_equal(a, expected) or np.array_equal(a, expected.T) for a in found), site
        assert all(array.dtype == np.uint8 for array in found)
        assert sum(array.size for array in found) == weight.numel(), site  # once, not in two orientations
    # What is left in floating point is small, or the head's.
    head = {id(p) for p in model.parameters()} - {id(p) for p in model.base_model.parameters()}
    largest = max((a.size for a in stored.values() if a.dtype == np.float32), default=0)
    heads = max((p.numel() for p in model.parameters() if id(p) in head), default=0)
    tied = model.get_output_embeddings()
    heads = max(heads, 0 if tied is None or not hasattr(tied, "weight") else tied.weight.numel())
    assert largest <= max(heads, 64 * 33, 32 * 4 * 8 * 4)


def test_the_folder_has_metrics_and_a_note_that_runs(exported):
    _, _, folder, result = exported
    figures = json.loads((folder / "export.json").read_text())
    assert figures["weights"] == result.weights
    assert {row["batch"] for row in figures["latency"]} == {1, 8}
    for row in result.latency:
        assert {(run.runtime, run.kind) for run in row.runs} == RUNS
        assert all(0 < run.fastest_ms <= run.median_ms for run in row.runs)
    note = (folder / "README.md").read_text()
    assert "onnxruntime.InferenceSession" in note
    assert "openvino.Core()" in note
    assert figures["bytes"]["int8"] == (folder / "model.onnx").stat().st_size
    session = OnnxModel(folder / "model.onnx").session
    names = [dimension for value in session.get_inputs() for dimension in value.shape[:2]]
    assert {"batch", "batch_size"} & set(names)  # a batch of any size; the second is optimum's name, in decoders


def test_signed_weights_are_the_same_integers_shifted():
    model = build("bert")
    qf.quantize_(model, qf.QuantSpec(), inputs("bert"))
    qf.calibrate_(model, [inputs("bert")])
    marked = marked_program(model, inputs("bert"), "logits")
    both = [integer_graph(marked, quantizers(model), signed_weights=signed) for signed in (True, False)]
    signed, unsigned = (
        {name: value.const_value.numpy() for name, value in graph.graph.initializers.items() if ".integers" in name}
        for graph in both
    )
    assert signed
    assert set(signed) == set(unsigned)
    for name, array in signed.items():
        assert array.dtype == np.int8
        assert np.array_equal(array.astype(int) + 128, unsigned[name].astype(int))


def test_an_uncalibrated_model_is_refused(tmp_path):
    model = build("bert")
    with pytest.raises(QuietformerError, match="no calibrated quantizers"):
        qf.export_onnx(model, tmp_path / "out", [inputs("bert")])
    qf.quantize_(model, qf.QuantSpec(), inputs("bert"))
    with pytest.raises(QuietformerError, match="no calibrated quantizers"):
        qf.export_onnx(model, tmp_path / "out", [inputs("bert")])
    assert not list(tmp_path.iterdir())


def test_a_model_that_gives_only_zeros_is_called_so(tmp_path):
    """Not a mistake of the exporter's: there is nothing to compare with."""
    model = build("vit")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    qf.quantize_(model, qf.QuantSpec(), inputs("vit"))
    qf.calibrate_(model, [inputs("vit")])
    with pytest.raises(QuietformerError, match="gives only zeros"):
        qf.export_onnx(model, tmp_path / "out", [inputs("vit")])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("moment", ["fp32_difference", "checked", "latency_rows"])
def test_an_interrupted_export_leaves_the_old_folder_and_nothing_else(tmp_path, monkeypatch, moment):
    model = build("vit")
    qf.quantize_(model, qf.QuantSpec(), inputs("vit"))
    qf.calibrate_(model, [inputs("vit")])
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "model.onnx").write_text("the old one")

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(export_module, moment, interrupt)
    with pytest.raises(KeyboardInterrupt):
        qf.export_onnx(model, folder, [inputs("vit")], options=qf.OnnxOptions(weight_type="uint8"))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (folder / "model.onnx").read_text() == "the old one"


@pytest.mark.parametrize("wrong", [0.5, float("nan")])
def test_a_graph_that_differs_from_torch_is_not_written(tmp_path, monkeypatch, wrong):
    model = build("vit")
    qf.quantize_(model, qf.QuantSpec(), inputs("vit"))
    qf.calibrate_(model, [inputs("vit")])
    right = traced_graphs.floating_graph

    def tampered(marked):
        graph = right(marked)
        bias = next(value for name, value in graph.graph.initializers.items() if name.endswith("bias"))
        bias.const_value = ir.tensor(bias.const_value.numpy() + np.float32(wrong), name=bias.name)
        return graph

    monkeypatch.setattr(traced_graphs, "floating_graph", tampered)
    with pytest.raises(QuietformerError, match="differs from ViTForImageClassification by"):
        qf.export_onnx(model, tmp_path / "out", [inputs("vit")], options=qf.OnnxOptions(weight_type="uint8"))
    assert not list(tmp_path.iterdir())


def test_a_layer_that_is_called_several_times_is_exported(tmp_path):
    torch.manual_seed(0)
    small = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "embedding_size": 16}
    model = AlbertModel(AlbertConfig(vocab_size=99, num_hidden_layers=3, **small)).eval()
    qf.quantize_(model, qf.QuantSpec(), inputs("bert"))
    qf.calibrate_(model, [inputs("bert")])
    result = qf.export_onnx(
        model, tmp_path / "out", [inputs("bert")], options=qf.OnnxOptions(weight_type="uint8", threads=1)
    )
    assert result.agreement.cosine > 0.999


def test_a_bfloat16_model_is_exported_in_float32(tmp_path):
    model = build("vit").to(torch.bfloat16)
    given = {"pixel_values": inputs("vit")["pixel_values"].to(torch.bfloat16)}
    qf.quantize_(model, qf.QuantSpec(), given)
    qf.calibrate_(model, [given])
    result = qf.export_onnx(model, tmp_path / "out", [given], options=qf.OnnxOptions(weight_type="uint8", threads=1))
    assert result.agreement.cosine > 0.999
    assert model.dtype == torch.bfloat16


def test_an_export_of_somebody_elses_computes_quantized():
    model = build("bert")
    qf.quantize_(model, qf.QuantSpec(), inputs("bert"))
    qf.calibrate_(model, [inputs("bert")])
    with torch.no_grad():
        expected = model(**inputs("bert")).logits
        program = torch.export.export(model, (), inputs("bert"))
        assert torch.allclose(program.module()(**inputs("bert")).logits, expected, atol=1e-5)


def test_a_model_that_cannot_be_exported_says_why(tmp_path, monkeypatch):
    model = build("bert")
    qf.quantize_(model, qf.QuantSpec(), inputs("bert"))
    qf.calibrate_(model, [inputs("bert")])

    def forward(hidden_states):
        if float(hidden_states.sum()) > 0:  # depends on the data: no graph has both ways
            return hidden_states
        return -hidden_states

    model.bert.encoder.layer[0].intermediate.forward = forward
    monkeypatch.setattr(model.bert.encoder.layer[0].output, "forward", lambda hidden, residual: hidden)
    with pytest.raises(QuietformerError, match=r"BertForMaskedLM cannot be exported to ONNX: ") as caught:
        qf.export_onnx(model, tmp_path / "out", [inputs("bert")])
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_embeddings_are_compared_as_users_make_them(tmp_path):
    """The mean over a sequence's tokens, without padding, by onnxruntime and torch alone."""
    model = build("bert").bert
    given = inputs("bert")
    given["attention_mask"][0, -3:] = 0
    qf.quantize_(model, qf.QuantSpec(placement="matmul", per_channel=True), given)
    qf.calibrate_(model, [given])
    result = qf.export_onnx(model, tmp_path / "out", [given], options=OnnxOptions(timed=False, runtime="onnxruntime"))
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    wanted = {item.name for item in session.get_inputs()}
    theirs = session.run(None, {name: x.numpy() for name, x in given.items() if name in wanted})[0]
    with torch.no_grad():
        ours = model(**given).last_hidden_state
    mask = given["attention_mask"][..., None].double()
    one, other = ((x.double() * mask).sum(1) / mask.sum(1) for x in (ours, torch.from_numpy(theirs)))
    expected = torch.nn.functional.cosine_similarity(one, other, dim=-1).mean()
    assert result.agreement.embedding_cosine == pytest.approx(float(expected), abs=1e-9)
