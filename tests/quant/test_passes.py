"""Static ranges of a module that layers share: one for each of its calls."""

from __future__ import annotations

import threading

import pytest
import torch
from transformers import AlbertConfig, AlbertForMaskedLM

import quietformer as qf
from quietformer.deployment.compressed_weights import write_compressed
from quietformer.deployment.onnx_runtime import OnnxModel
from quietformer.errors import QuietformerError
from quietformer.quant.insertion import quantizers
from quietformer.quant.quantizer import Grid
from tests.tiny_models import inputs, logits

PASSES = 3
SHARED = "albert.encoder.albert_layer_groups.0.albert_layers.0"


def albert():
    """Layers that share their weights, and whose inputs grow from one to the next."""
    torch.manual_seed(0)
    config = AlbertConfig(
        vocab_size=99, embedding_size=16, hidden_size=32, num_hidden_layers=PASSES, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=64, attn_implementation="eager",
    )  # fmt: skip
    model = AlbertForMaskedLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model


def quantized(**spec):
    model = albert()
    given = {"placement": "matmul", "per_channel": True, "activations": "minmax", "per_pass": True} | spec
    qf.quantize_(model, qf.QuantSpec(**given), inputs("bert"))
    qf.calibrate_(model, [inputs("bert")])
    return model


def read_in_fp32(name):
    """What a shared module reads, call by call."""
    model, found = albert(), []
    model.get_submodule(name).register_forward_pre_hook(lambda _, args: found.append(args[0]))
    logits(model, inputs("bert"))
    return found


def test_every_call_has_the_range_of_what_it_reads():
    name = f"{SHARED}.ffn_output"
    quantizer = quantizers(quantized())[f"{name}:input"]
    assert quantizer.grid == Grid(8, False, passes=PASSES)
    for place, read in enumerate(read_in_fp32(name)):
        scale, zero_point = quantizer.grid_at(place)
        reach = read.amax().clamp(min=0) - read.amin().clamp(max=0)
        torch.testing.assert_close(scale, reach / 255)
        assert int(zero_point) == round(float(-read.amin() / scale))


def test_ranges_differ_only_where_a_module_is_shared():
    for site, quantizer in quantizers(quantized()).items():
        shared = site.startswith(SHARED) and not site.endswith(":weight")
        assert quantizer.grid.passes == (PASSES if shared else None), site
    assert all(quantizer.grid.passes is None for quantizer in quantizers(quantized(per_pass=False)).values())


@pytest.mark.parametrize("placement", ["matmul", "paper"])
def test_steps_are_never_larger_than_those_of_one_range_and_mostly_smaller(placement):
    one, own = (quantizers(quantized(placement=placement, per_pass=per_pass)) for per_pass in (False, True))
    steps = torch.stack([own[site].scale / one[site].scale for site, found in own.items() if found.grid.passes])
    assert bool((steps <= 1).all())
    assert float((steps < 1).double().mean()) > 0.5


def test_calls_are_counted_anew_after_a_pass_that_was_broken_off():
    model, batch = quantized(), inputs("bert")
    expected, calls = logits(model, batch), []

    def break_off(module, args):
        calls.append(module)
        if len(calls) == 2:
            raise KeyboardInterrupt

    handle = model.get_submodule(f"{SHARED}.ffn").register_forward_pre_hook(break_off)
    with pytest.raises(KeyboardInterrupt):
        model(**batch)
    handle.remove()
    assert torch.equal(logits(model, batch), expected)


def test_threads_count_for_themselves():
    model, batch = quantized(), inputs("bert")
    expected, found = logits(model, batch), []
    threads = [threading.Thread(target=lambda: found.append(logits(model, batch))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(threads)
    assert all(torch.equal(one, expected) for one in found)


@pytest.mark.parametrize("placement", ["matmul", "paper"])
def test_a_saved_model_computes_the_same(placement, tmp_path):
    model = quantized(placement=placement)
    qf.save(model, tmp_path / "model")
    assert torch.equal(logits(qf.load(tmp_path / "model"), inputs("bert")), logits(model, inputs("bert")))


@pytest.mark.parametrize("placement", ["matmul", "paper"])
def test_the_graph_has_the_ranges_of_every_call(placement, tmp_path):
    model, batch = quantized(placement=placement), inputs("bert")
    qf.export_onnx(model, tmp_path / "int8", [batch], options=qf.OnnxOptions(timed=False, runtime="onnxruntime"))
    got, expected = OnnxModel(tmp_path / "int8" / "model.onnx")(batch)["logits"], logits(model, batch)
    cosine = torch.nn.functional.cosine_similarity(got.double(), expected.double(), dim=-1)
    assert float(cosine.mean()) > 0.9995


def test_compressed_tensors_have_one_range(tmp_path):
    """There is no place for several in such a folder."""
    with pytest.raises(QuietformerError, match="--no-per-pass"):
        write_compressed(quantized(placement="linear"), tmp_path)
