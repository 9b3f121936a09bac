"""Encoder-decoders as two graphs: what transformers computes and writes, and INT8 as the simulation."""

from __future__ import annotations

import onnx
import onnxruntime
import pytest
import torch

from quietformer.analysis.writing import first_tokens_of, read_by_decoder, written
from quietformer.config.options.export import OnnxOptions
from quietformer.config.options.generate import GenerationOptions
from quietformer.config.quantization import QuantSpec
from quietformer.deployment.onnx_export import FP32, export_onnx
from quietformer.deployment.seq2seq_model import DECODER, ENCODER, graph_path, open_graph
from quietformer.quant.calibration import calibrate_, full_precision, quantize_
from tests.deployment.seq2seq_models import END, FRAMES, MELS, PAD, VOCABULARY, tiny_seq2seq

FAMILIES = ("whisper", "t5")
MOST = 16


def inputs(name, seed):
    """Sound of three windows, or texts of different lengths, padded on the right."""
    draw = torch.Generator().manual_seed(seed)
    if name == "whisper":
        return {"input_features": torch.randn(3, MELS, FRAMES, generator=draw)}
    ids = torch.randint(10, VOCABULARY, (3, 12), generator=draw)
    mask = torch.ones_like(ids)
    ids[1, 7:], mask[1, 7:] = PAD, 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    folder, name = tmp_path_factory.mktemp(request.param), request.param
    model = tiny_seq2seq(name)
    batches = [read_by_decoder(model, inputs(name, seed), MOST) for seed in (1, 2)]
    quantize_(model, QuantSpec(placement="matmul", per_channel=True, head=True), batches[0])
    calibrate_(model, batches)
    options = OnnxOptions(timed=False, keep_fp32=True, weight_type="uint8")
    return name, model, export_onnx(model, folder, batches, None, options), folder


def by_transformers(name, model, batch):
    """What follows the prompt, by transformers' own greedy search; Whisper's leaves the prompt out."""
    with torch.no_grad():
        made = model.generate(**batch, max_new_tokens=MOST, do_sample=False, num_beams=1)
    behind = 0 if name == "whisper" else len(first_tokens_of(model).prompt)
    return [cut(row[behind:]) for row in made.tolist()]


def cut(row):
    return row[: row.index(END) + 1] if END in row else row


def by_graph(runtime, model, batch, **options):
    first = first_tokens_of(model)
    return runtime.written(batch, first, GenerationOptions(max_new_tokens=MOST, **options))


def test_the_fp32_graphs_write_what_transformers_does(family):
    name, model, details, folder = family
    assert details.fp32_difference < 1e-5
    batch = inputs(name, 3)
    with full_precision(model):
        wanted, ours = by_transformers(name, model, batch), written(model, batch, MOST)
    found = by_graph(open_graph(graph_path(folder, FP32)), model, batch)
    assert found == ours
    assert len({tuple(row) for row in found}) == 3
    for row, told in zip(found, wanted, strict=True):
        assert len(told) >= MOST - 1 or told[-1] == END  # a forced token is one of the sixteen
        assert row[: len(told)] == told


def test_int8_writes_what_the_simulation_does_but_for_ties(family):
    name, model, _, folder = family
    batch, prompt = inputs(name, 3), list(first_tokens_of(model).prompt)
    found, wanted = by_graph(open_graph(graph_path(folder)), model, batch), written(model, batch, MOST)
    for place, (row, told) in enumerate(zip(found, wanted, strict=True)):
        parted = next((step for step, pair in enumerate(zip(row, told, strict=False)) if pair[0] != pair[1]), None)
        if parted is None:
            assert row == told
            continue
        one = {name: tensor[place : place + 1] for name, tensor in batch.items()}
        with torch.no_grad():
            tokens = torch.tensor([prompt + told[:parted]])
            logits = model(**one, decoder_input_ids=tokens).logits[0, -1]
        assert logits[told[parted]] - logits[row[parted]] < 0.05 * (logits.max() - logits.min())


def test_one_by_one_is_what_a_batch_gives_and_a_seed_gives_the_same_draw(family):
    name, model, _, folder = family
    runtime, batch = open_graph(graph_path(folder, FP32)), inputs(name, 3)
    single = [
        by_graph(runtime, model, {key: tensor[place : place + 1] for key, tensor in batch.items()})
        for place in range(3)
    ]
    assert [row for (row,) in single] == by_graph(runtime, model, batch)
    drawn = [by_graph(runtime, model, batch, do_sample=True, seed=seed) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_the_graphs_have_the_names_that_clients_look_for(family):
    name, model, details, folder = family
    encoder, decoder = (onnxruntime.InferenceSession(folder / f"{stem}.onnx") for stem in (ENCODER, DECODER))
    assert [one.name for one in encoder.get_outputs()] == ["last_hidden_state"]
    layers = model.config.decoder_layers if name != "t5" else model.config.num_decoder_layers
    parts = [
        f"{layer}.{side}.{part}"
        for layer in range(layers)
        for side in ("decoder", "encoder")
        for part in ("key", "value")
    ]
    taken = {one.name: one for one in decoder.get_inputs()}
    mask = set() if name == "whisper" else {"encoder_attention_mask"}
    fixed = {"input_ids", "encoder_hidden_states", "use_cache_branch"} | mask
    assert set(taken) == fixed | {f"past_key_values.{part}" for part in parts}
    assert [one.name for one in decoder.get_outputs()] == ["logits", *(f"present.{part}" for part in parts)]
    assert taken["use_cache_branch"].shape == [1]
    assert details.inputs == [*(one.name for one in encoder.get_inputs()), "decoder_input_ids"]
    weights = {one.name.removesuffix(".t"): one for one in onnx.load(folder / f"{DECODER}.onnx").graph.initializer}
    assert sum(name.endswith(":weight.integers") for name in weights) >= 10
    assert details.bytes.int8 == sum((folder / f"{stem}.onnx").stat().st_size for stem in (ENCODER, DECODER))
