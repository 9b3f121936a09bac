"""Layer by layer: ranges, smoothing, integers and metrics are those of the model as a whole, bit for bit."""

from __future__ import annotations

import importlib.util
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import AlbertConfig, AlbertModel, AutoModelForCausalLM, MambaConfig, MambaForCausalLM

import quietformer as qf
from quietformer.analysis.evaluate import evaluate, reference_run
from quietformer.config.options.layer_by_layer import LayerByLayerOptions
from quietformer.config.quantization import QuantSpec, placements
from quietformer.deployment.compressed_weights import integer_layers, write_compressed
from quietformer.deployment.shards import ShardWriter
from quietformer.models.blocks_from_disk import ModelOnDisk
from quietformer.progress import SILENT
from quietformer.quant.insertion import quantizers
from quietformer.results.layer_by_layer import LayerByLayerReport
from quietformer.transforms.smoothquant import NOTHING_BEFORE, migrate_
from quietformer.workflows.block_by_block import BlockByBlock, Work
from quietformer.workflows.layer_by_layer import too_large
from quietformer.workflows.smoothing_exponent import least_error_exponent
from tests.tiny_models import VOCABULARY, build
from tests.training.pretrained import tiny_pretrained

QUICK = {"length": 16, "sequences": 4, "batch_size": 2, "calibration": 2}
INSTALLED = importlib.util.find_spec("compressed_tensors") is not None


def padded_batches(count, seed):
    """Batches of several lengths, padded on the right and on the left."""
    generator, batches = torch.Generator().manual_seed(seed), []
    for place in range(count):
        tokens = torch.randint(3, VOCABULARY, (3, 7 + place), generator=generator)
        mask = torch.ones_like(tokens)
        mask[1, -3:] = 0
        batches.append({"input_ids": tokens, "attention_mask": mask.flip(1) if place % 2 else mask, "labels": tokens})
    return batches


def layer_by_layer(folder, out, work, task):
    disk = ModelOnDisk(str(folder))
    out.mkdir()
    with torch.no_grad():
        engine = BlockByBlock(disk, disk.hollow(), work, out.parent / "states", SILENT)
        writer = ShardWriter(out, engine.blocks + 1)
        engine.front()
        for index in range(engine.blocks):
            engine.block(index, writer)
        reference, found = engine.tail(writer, task)
    written = {}
    for name in writer.shards:
        written |= load_file(out / name)
    return engine, reference.evaluation.measured, found.measured, written


@pytest.mark.parametrize("name", ["opt", "llama", "bert"])
@pytest.mark.parametrize("placement", ["matmul", "linear"])
def test_everything_is_as_if_the_model_had_been_in_memory(name, placement, tmp_path):
    build(name).save_pretrained(tmp_path / "model", max_shard_size="20KB")
    spec = QuantSpec(placement=placements[placement](), per_channel=True, head=True)
    alpha = least_error_exponent(spec) if placement == "linear" else 0.5
    calibration, evaluation = padded_batches(4, 1), padded_batches(3, 2)
    task = "masked" if name == "bert" else "causal"

    whole = qf.open_model(tmp_path / "model")
    reference = reference_run(whole, evaluation, task)
    done = migrate_(whole, calibration, alpha, only_folded=True)
    qf.quantize_(whole, spec, calibration[0])
    qf.calibrate_(whole, calibration)
    write_compressed(whole, tmp_path / "whole")

    work = Work(spec, alpha, calibration, evaluation, ("cpu", "cpu:0"))
    engine, before, after, written = layer_by_layer(tmp_path / "model", tmp_path / "out", work, task)
    expected, found = quantizers(whole), quantizers(engine.chain.model)
    assert found.keys() == expected.keys()
    for site, quantizer in expected.items():
        assert torch.equal(found[site].scale_pattern, quantizer.scale_pattern), site
        assert torch.equal(found[site].zero_point, quantizer.zero_point), site
    assert engine.smoothed == done
    assert done.folded >= 2
    stored = load_file(tmp_path / "whole" / "model.safetensors")
    assert written.keys() == stored.keys()
    for key, tensor in stored.items():
        assert written[key].dtype == tensor.dtype, key
        assert torch.equal(written[key], tensor), key
    sites = {one.site for pair in engine.pairs.values() for one in pair}
    for site, quantizer in expected.items():
        quantizer.mode = "quantize" if site in sites else "pass"  # the format has no place for the others
    assert before == reference.evaluation.measured
    assert after == evaluate(whole, evaluation, task, reference).measured


def test_smoothing_that_only_folds_leaves_an_ordinary_model():
    model, batches = build("llama"), padded_batches(2, 1)
    done = migrate_(model, batches, 0.5, only_folded=True)
    assert done.divided == 0
    assert set(done.left.values()) == {NOTHING_BEFORE}
    assert len(done.alphas) == done.folded
    assert model.state_dict().keys() == build("llama").state_dict().keys()
    qf.quantize_(model, QuantSpec(placement="linear"), batches[0])
    assert integer_layers(model, build("llama"))  # nothing that the format could not say


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return tiny_pretrained(tmp_path_factory.mktemp("model") / "opt", "opt")


def test_the_folder_is_complete_and_the_report_says_what_it_is_worth(source, tmp_path):
    report = qf.export_layer_by_layer(source, tmp_path / "out", **QUICK)
    assert LayerByLayerReport.read(tmp_path / "out" / "report.json") == LayerByLayerReport.from_fields(
        report.model_dump(mode="json")
    )
    assert report.integer_layers == 12
    assert report.smoothing.groups + report.smoothing.left == 8
    assert report.runs[0].metrics.perplexity == pytest.approx(report.fp32.perplexity, rel=0.1)
    assert report.cost.weights_written < report.cost.weights_read
    assert not (tmp_path / "out" / "hidden_states").exists()
    assert (tmp_path / "out" / "tokenizer.json").is_file()
    assert "layer-by-layer" in report.command
    if INSTALLED:
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
        data = qf.quantize(source, placement="linear", per_channel=True, seeds=1, **QUICK)
        assert report.fp32.perplexity == data.fp32.perplexity  # the same text
        with torch.no_grad():
            assert loaded(torch.tensor([[5, 6, 7]])).logits.isfinite().all()


def test_a_plan_says_memory_disk_and_time_and_writes_nothing(source, tmp_path):
    plan = qf.plan_layer_by_layer(source, tmp_path / "out", **QUICK)
    assert plan.memory.peak >= plan.memory.libraries
    assert plan.memory.largest_part <= plan.weights
    assert plan.disk > 0
    assert plan.seconds > 0
    assert list(tmp_path.iterdir()) == []


# ---- bad input
def refused(model, out, says, **options):
    for verb in (qf.export_layer_by_layer, qf.plan_layer_by_layer):
        with pytest.raises(qf.QuietformerError, match=says) as error:
            verb(model, out, **(QUICK | options))
        assert "\n" not in str(error.value)
        assert not out.exists()


def sharded(folder):
    """A model in several files, and the index that names them."""
    model = qf.open_model(tiny_pretrained(folder, "opt"))
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="50KB")
    return json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]


def test_a_missing_shard_is_named(tmp_path):
    named = sharded(tmp_path / "model")
    lost = sorted(named.values())[1]
    (tmp_path / "model" / lost).unlink()
    refused(tmp_path / "model", tmp_path / "out", f"{lost}, named in model.safetensors.index.json, is not there")


def test_a_tensor_that_no_shard_holds_is_named(tmp_path):
    named = sharded(tmp_path / "model")
    index = tmp_path / "model" / "model.safetensors.index.json"
    lost = named["model.decoder.layers.1.fc1.weight"]
    for name in [name for name, file in named.items() if file == lost]:
        del named[name]
    index.write_text(json.dumps({"weight_map": named}))
    refused(tmp_path / "model", tmp_path / "out", "lacks [0-9]+ tensors of OPTForCausalLM .* layer by layer")


def test_too_little_disk_is_told_before_the_work(source, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("quietformer.files.shutil.disk_usage", lambda place: usage._replace(free=1000))
    with pytest.raises(qf.QuietformerError, match=r"needs .* MB of disk space .* are free"):
        qf.export_layer_by_layer(source, tmp_path / "out", **QUICK)
    assert list(tmp_path.iterdir()) == []


SMALL = {"vocab_size": 320, "hidden_size": 32, "num_hidden_layers": 2}


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (lambda: MambaForCausalLM(MambaConfig(**SMALL, state_size=4)), "no transformer blocks were found in MambaForCausalLM"),
        (
            lambda: AlbertModel(AlbertConfig(**SMALL, embedding_size=16, num_attention_heads=2, intermediate_size=32)),
            "runs .* several times in a pass",
        ),
    ],
)  # fmt: skip
def test_a_model_without_a_row_of_blocks_is_refused(model, says, source, tmp_path):
    model().save_pretrained(tmp_path / "model")
    refused(tmp_path / "model", tmp_path / "out", says, tokenizer=str(source))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"device_map": "cuda:99"}, "--device-map: 'cuda:99' cannot be used"),
        ({"device_map": "cpu,meta"}, "--device-map: 'meta' cannot be used"),
        ({"targets": "openvino"}, "only compressed-tensors is written layer by layer"),
        ({"placement": "paper"}, "pass --placement linear"),
        ({"bits": "w4a8"}, "it is written as W8A8"),
    ],
)
def test_what_cannot_be_written_layer_by_layer_is_refused(source, tmp_path, options, says):
    refused(source, tmp_path / "out", says, **options)


def test_what_is_no_folder_of_an_original_model_is_refused(source, tmp_path):
    refused("nobody/nothing", tmp_path / "out", "is not a folder")
    refused(qf.open_model(source), tmp_path / "out", "is in memory already")
    qf.convert(source, tmp_path / "ours", gate="linear")
    refused(tmp_path / "ours", tmp_path / "out", "changed by Quietformer")


def test_options_of_other_exports_do_not_go_with_it(run, source, tmp_path):
    out = tmp_path / "out"
    assert (
        "--runtime does not go with --layer-by-layer"
        in run("export", source, out, "--layer-by-layer", "--runtime", "both")[2]
    )
    assert "--device-map goes with --layer-by-layer" in run("export", source, out, "--device-map", "cpu")[2]
    assert not out.exists()
    assert LayerByLayerOptions.model_fields.keys() - {"device_map"} <= qf.export.options.model_fields.keys()


def test_a_model_is_too_large_when_two_copies_do_not_fit_into_memory(source, tmp_path):
    assert not too_large(str(source))
    assert not too_large("nobody/nothing")  # nobody knows before it is there
    (tmp_path / "huge").mkdir()
    with (tmp_path / "huge" / "model.safetensors").open("wb") as file:
        file.truncate(10**13)  # takes no room on the disk
    assert too_large(str(tmp_path / "huge"))
