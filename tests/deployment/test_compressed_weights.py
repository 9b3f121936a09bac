"""compressed-tensors: the file holds the calibrated integers, and transformers computes with them what the simulation does."""

from __future__ import annotations

import importlib.util
import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

import quietformer as qf
from quietformer.config.quantization import placements
from quietformer.deployment.compressed_weights import write_compressed
from quietformer.deployment.shipment import plain_config, write_json
from quietformer.errors import QuietformerError
from quietformer.quant.insertion import quantizers
from tests.deployment.exports import TEXTS, small, write_model
from tests.tiny_models import build, inputs

INSTALLED = importlib.util.find_spec("compressed_tensors") is not None
WAYS = {
    "static": {},
    "static symmetric, per tensor": {"activation_symmetric": True, "per_channel": False},
    "per token": {"granularity": "token"},
}
LAYER = "encoder.layer.0.intermediate.dense"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model") / "source")


def calibrated(source, **fields):
    model = qf.open_model(source)
    batch = dict(AutoTokenizer.from_pretrained(source)(TEXTS[:6], padding=True, return_tensors="pt"))
    spec = {"placement": placements["linear"](), "per_channel": True} | fields
    qf.quantize_(model, qf.QuantSpec(**spec), batch)
    qf.calibrate_(model, [batch])
    return model, batch


@pytest.fixture(scope="module", params=sorted(WAYS))
def written(request, source, tmp_path_factory):
    model, batch = calibrated(source, **WAYS[request.param])
    out = tmp_path_factory.mktemp("out") / "model"
    described = write_compressed(model, out)
    write_json(out / "config.json", plain_config(model) | {"quantization_config": described})
    return model, batch, out


def test_integers_times_scales_are_the_weights_of_the_simulation(written):
    model, _, out = written
    stored, placed = load_file(out / "model.safetensors"), quantizers(model)
    read = [name.removesuffix(":input") for name in placed if name.endswith(":input")]
    layers = [name for name in read if name.startswith("encoder.layer.")]
    assert len(layers) == 12  # six a layer
    for name in layers:
        assert stored[f"{name}.weight"].dtype == torch.int8
        rounded = placed[f"{name}:weight"].rounded(model.get_submodule(name)._parameters["weight"])
        torch.testing.assert_close(stored[f"{name}.weight"] * stored[f"{name}.weight_scale"], rounded.detach())


def test_the_pooler_stays_as_it_was_and_is_listed(written):
    model, _, out = written
    stored, told = load_file(out / "model.safetensors"), json.loads((out / "config.json").read_text())
    torch.testing.assert_close(stored["pooler.dense.weight"], model.pooler.dense._parameters["weight"].detach())
    assert told["quantization_config"]["ignore"] == ["pooler.dense"]


@pytest.mark.parametrize(("name", "head"), [("llama", "lm_head"), ("bert", "cls.predictions.transform.dense")])
def test_heads_are_listed_too(tmp_path, name, head):
    model, batch = build(name), inputs(name)
    qf.quantize_(model, qf.QuantSpec(placement="linear", head=True), batch)
    qf.calibrate_(model, [batch])
    assert head in write_compressed(model, tmp_path / "out")["ignore"]
    assert load_file(tmp_path / "out" / "model.safetensors")[f"{head}.weight"].dtype == torch.float32


def test_the_range_of_inputs_is_the_calibrated_one(written):
    model, _, out = written
    stored, read = load_file(out / "model.safetensors"), quantizers(model)[f"{LAYER}:input"]
    if read.grid.token:
        assert f"{LAYER}.input_scale" not in stored
        return
    lowest = torch.tensor([-128.0]) - stored.get(f"{LAYER}.input_zero_point", torch.zeros(1))
    torch.testing.assert_close((lowest * stored[f"{LAYER}.input_scale"])[0], read.range()[0])


def test_the_original_stays_as_it_is(source):
    model, batch = calibrated(source)
    with torch.no_grad():
        before = model(**batch).last_hidden_state
    places = set(quantizers(model))
    write_compressed(model, source.parent / "elsewhere")
    with torch.no_grad():
        torch.testing.assert_close(model(**batch).last_hidden_state, before, rtol=0, atol=0)
    assert set(quantizers(model)) == places


@pytest.mark.skipif(not INSTALLED, reason="compressed-tensors is not installed")
def test_transformers_computes_what_the_simulation_does(written):
    model, batch, out = written
    for site, quantizer in quantizers(model).items():
        if "embeddings" in site:
            quantizer.mode = "pass"  # they stay in full precision in the file
    loaded = AutoModel.from_pretrained(out).eval()
    with torch.no_grad():
        expected, found = model(**batch).last_hidden_state, loaded(**batch).last_hidden_state
    cosine = torch.nn.functional.cosine_similarity(found, expected, dim=-1)
    assert float(cosine.min()) > 0.999
    if quantizers(model)[f"{LAYER}:input"].grid.token:
        return  # its scale of a token is 127.5 steps long, ours 127
    values = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(loaded.get_submodule(LAYER)(values), model.get_submodule(LAYER)(values))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"placement": placements["paper"]()}, "pass --placement linear"),
        ({"weight_bits": 4}, "it is written as W8A8"),
        ({"rules": ("*.query:input=16",)}, "has 16 bits; only 8 can be written"),
    ],
)
def test_what_the_format_cannot_say_is_refused(source, tmp_path, fields, says):
    model, _ = calibrated(source, **fields)
    with pytest.raises(QuietformerError, match="--for compressed-tensors: ") as refused:
        write_compressed(model, tmp_path / "out")
    assert says in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_attention_of_ours_is_refused(source, tmp_path):
    model = qf.open_model(source)
    qf.apply_attention_(model, qf.AttentionSpec(normalizer=qf.Softmax1()))
    batch = dict(AutoTokenizer.from_pretrained(source)(TEXTS[:6], padding=True, return_tensors="pt"))
    qf.quantize_(model, qf.QuantSpec(placement=placements["linear"]()), batch)
    qf.calibrate_(model, [batch])
    with pytest.raises(QuietformerError, match="only the model's own"):
        write_compressed(model, tmp_path / "out")


def test_the_search_is_refused_before_the_work(source, tmp_path):
    with pytest.raises(QuietformerError, match="pass --no-search"):
        qf.export(source, tmp_path / "out", targets="compressed-tensors", **(small(source) | {"search": True}))


def test_one_folder_serves_it_beside_onnx(source, tmp_path):
    chosen = "compressed-tensors,onnxruntime"
    qf.export(source, tmp_path / "out", targets=chosen, placement="linear", **small(source))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization_config"]["config_groups"]["group_0"]["targets"] == ["Linear"]
    assert config["architectures"] == ["BertModel"]
    assert (tmp_path / "out" / "model.onnx").is_file()
    assert qf.OnnxModel(tmp_path / "out").encode(TEXTS[:2]).shape == (2, 32)


def test_a_prefix_has_no_place_in_the_format(tmp_path):
    model, batch = build("llama"), inputs("llama")
    qf.add_prefix_(model, (5, 9))
    qf.quantize_(model, qf.QuantSpec(placement="linear"), batch)
    qf.calibrate_(model, [batch])
    with pytest.raises(QuietformerError, match="no place for the keys and values of a prefix"):
        write_compressed(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
