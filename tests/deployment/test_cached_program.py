"""Graphs with past keys and values: prefill and decode are what transformers computes, and generation is the same."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch

from quietformer.config.options.export import OnnxOptions
from quietformer.config.options.generate import GenerationOptions
from quietformer.config.quantization import QuantSpec
from quietformer.deployment.generation import Generator
from quietformer.deployment.onnx_export import FLOATING, export_onnx
from quietformer.deployment.onnx_runtime import OnnxModel
from quietformer.deployment.openvino_runtime import OPENVINO_FILE, OpenVinoModel
from quietformer.deployment.usage_note import INTEGER
from quietformer.quant.calibration import calibrate_, full_precision, quantize_
from quietformer.transforms.prefix import add_prefix_
from tests.deployment.causal_models import VOCABULARY, tiny_causal

FAMILIES = ("grouped", "sliding", "opt", "gpt2")
MOST = 16


def tokens(seed: int, *size: int):
    return torch.randint(3, VOCABULARY, size, generator=torch.Generator().manual_seed(seed))


def exported(name: str, folder, granularity: str = "tensor"):
    model = tiny_causal(name)
    batches = [
        {"input_ids": tokens(seed, 4, 20), "attention_mask": torch.ones(4, 20, dtype=torch.int64)} for seed in (1, 2)
    ]
    quantize_(model, QuantSpec(placement="matmul", per_channel=True, granularity=granularity), batches[0])
    calibrate_(model, batches)
    return model, export_onnx(model, folder, batches, None, OnnxOptions(timed=False, keep_fp32=True))


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return *exported(request.param, folder), folder


def prompts():
    """Of 9 and of 4 tokens, padded on the left."""
    ids, mask = tokens(3, 2, 9), torch.ones(2, 9, dtype=torch.int64)
    ids[1, :5], mask[1, :5] = 0, 0
    return ids, mask


def by_transformers(model, ids, mask):
    with torch.no_grad():
        made = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=MOST, do_sample=False)[
            :, ids.shape[1] :
        ]
    return [cut(row.tolist()) for row in made]


def cut(row):
    return row[: row.index(2) + 1] if 2 in row else row


def by_graph(runtime, ids, mask):
    return Generator(runtime, (2,), GenerationOptions(max_new_tokens=MOST)).continued(ids.numpy(), mask.numpy())


def test_the_fp32_graph_generates_what_transformers_does(family):
    model, details, folder = family
    ids, mask = prompts()
    assert details.fp32_difference < 1e-5
    with full_precision(model):
        wanted = by_transformers(model, ids, mask)
    assert by_graph(OnnxModel(folder / FLOATING), ids, mask) == wanted


def test_int8_generates_what_the_simulation_does_in_both_runtimes(family):
    model, details, folder = family
    ids, mask = prompts()
    assert (
        min(one.agreement_in_f32.cosine if one.agreement_in_f32 else one.agreement.cosine for one in details.runtimes)
        > 0.9999
    )
    wanted = by_transformers(model, ids, mask)
    assert by_graph(OnnxModel(folder / INTEGER), ids, mask) == wanted
    assert by_graph(OpenVinoModel(folder / OPENVINO_FILE, precision="f32"), ids, mask) == wanted


def test_inputs_and_outputs_have_the_names_and_sizes_that_clients_look_for(family):
    model, _, folder = family
    session = onnxruntime.InferenceSession(str(folder / INTEGER))
    parts = [f"{layer}.{part}" for layer in range(2) for part in ("key", "value")]
    fed = {value.name: value for value in session.get_inputs()}
    assert list(fed) == ["input_ids", "attention_mask", "position_ids", *(f"past_key_values.{part}" for part in parts)]
    assert [value.name for value in session.get_outputs()] == ["logits", *(f"present.{part}" for part in parts)]
    heads = getattr(model.config, "num_key_value_heads", model.config.num_attention_heads)
    assert fed["past_key_values.1.value"].shape == ["batch_size", heads, "past_sequence_length", 8]
    assert fed["attention_mask"].shape == ["batch_size", "total_sequence_length"]


def test_only_as_many_last_logits_are_computed_as_are_asked_for(family):
    *_, folder = family
    runtime = OnnxModel(folder / INTEGER)
    feeds = runtime.feeds(dict(zip(("input_ids", "attention_mask"), prompts(), strict=True)))
    every = runtime.run(feeds)
    for count in (1, 3, 99):
        last = runtime.run(feeds | {"num_logits_to_keep": np.array(count)})
        np.testing.assert_array_equal(last, every[:, -count:])


def test_scales_per_token_generate_what_the_simulation_does(tmp_path):
    model, _ = exported("grouped", tmp_path, granularity="token")
    ids, mask = prompts()
    assert by_graph(OnnxModel(tmp_path / INTEGER), ids, mask) == by_transformers(model, ids, mask)


def test_a_prefix_is_inside_the_graph(tmp_path):
    model, batch = tiny_causal("grouped"), {"input_ids": tokens(1, 4, 20)}
    add_prefix_(model, [7, 9])
    quantize_(model, QuantSpec(placement="matmul", per_channel=True), batch)
    calibrate_(model, [batch])
    whole = [batch | {"attention_mask": torch.ones(4, 20, dtype=torch.int64)}]
    export_onnx(model, tmp_path, whole, None, OnnxOptions(timed=False, runtime="onnxruntime"))
    ids, mask = prompts()
    assert by_graph(OnnxModel(tmp_path / INTEGER), ids, mask) == by_transformers(model, ids, mask)
