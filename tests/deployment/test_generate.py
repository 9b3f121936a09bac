"""`OnnxModel.generate`: texts continued as transformers does, draws that follow the probabilities, one line for mistakes."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import quietformer as qf
from quietformer.config.options.generate import GenerationOptions
from quietformer.deployment.generation import nucleus, sampler
from quietformer.deployment.onnx_runtime import OnnxModel
from quietformer.deployment.openvino_runtime import OPENVINO_FILE, OpenVinoModel
from quietformer.errors import QuietformerError
from tests.deployment.causal_models import POSITIONS, write_causal
from tests.deployment.exports import small

PROMPTS = ["This first sentence is about cats and", "The rest", "It says more of rivers, of bread and of"]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_causal(tmp_path_factory.mktemp("causal") / "source")


@pytest.fixture(scope="module")
def folder(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "causal"
    targets = "quietformer,optimum,transformers.js,onnxruntime,openvino"
    qf.export(source, out, targets=targets, keep_fp32=True, **small(source))
    return out


def test_the_fp32_graph_continues_texts_as_transformers_does(source, folder):
    tokenizer, model = AutoTokenizer.from_pretrained(source), AutoModelForCausalLM.from_pretrained(source).eval()
    wanted = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        made = model.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :]
        wanted.append(tokenizer.decode(made, skip_special_tokens=True))
    fp32 = qf.OnnxModel(folder, file="onnx/model.onnx")
    for batch_size in (1, 8):
        assert fp32.generate(PROMPTS, max_new_tokens=12, batch_size=batch_size) == wanted
    assert fp32.generate(PROMPTS[0], max_new_tokens=12) == wanted[0]
    assert fp32.generate([]) == []


def test_a_seed_gives_the_same_text_again_and_another_one_another(folder):
    model = qf.OnnxModel(folder)
    texts = [model.generate(PROMPTS, do_sample=True, seed=seed, max_new_tokens=24) for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]
    assert model.generate(PROMPTS, do_sample=True, top_p=1e-6) == model.generate(PROMPTS)


def test_draws_follow_the_probabilities_at_a_temperature():
    logits = np.log(np.array([[0.1, 0.2, 0.3, 0.4]], np.float32))
    draw = sampler(GenerationOptions(do_sample=True, temperature=0.5, seed=3))
    counts = np.bincount(draw(logits.repeat(20_000, 0)), minlength=4) / 20_000
    np.testing.assert_allclose(counts, np.array([1, 4, 9, 16]) / 30, atol=0.02)


def test_the_nucleus_is_that_of_transformers():
    from transformers import TopPLogitsWarper

    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0)) * 2
    for share in (0.1, 0.5, 0.9):
        wanted = TopPLogitsWarper(share)(None, logits)
        np.testing.assert_array_equal(np.isinf(nucleus(logits.numpy(), share)), wanted.isinf().numpy())


def test_the_folder_is_laid_out_for_clients_that_generate(source, folder):
    told = json.loads((folder / "generation_config.json").read_text())
    assert told["eos_token_id"] == AutoModelForCausalLM.from_pretrained(source).generation_config.eos_token_id
    assert (folder / "onnx" / "model_quantized.onnx").is_file()
    code = {one["name"]: one["code"] for one in json.loads((folder / "export.json").read_text())["targets"]}
    assert "ORTModelForCausalLM" in code["optimum"]
    assert "'text-generation'" in code["transformers.js"]
    assert "model.generate(" in code["quietformer"]


@pytest.mark.parametrize("client", ["onnxruntime", "openvino"])
def test_the_loop_of_the_card_writes_what_generate_does(folder, client):
    code = next(one for one in json.loads((folder / "export.json").read_text())["targets"] if one["name"] == client)[
        "code"
    ]
    found: dict[str, object] = {}
    exec(code.replace("FOLDER", str(folder)), found)
    model = qf.OnnxModel(folder, runtime=client)
    if client == "openvino":
        model.session = OpenVinoModel(folder / OPENVINO_FILE, precision="f32")  # as the loop asks for
    text = model.generate("some text", max_new_tokens=32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    written = found["tokens"][0, len(tokenizer("some text")["input_ids"]) :].tolist()
    end = tokenizer.eos_token_id
    written = written[: written.index(end)] if end in written else written
    assert tokenizer.decode(written, skip_special_tokens=True) == text


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        (["x"], {"top_p": 0.0}, "generate: top_p must be > 0"),
        (["x"], {"temprature": 1.0}, "did you mean 'temperature'"),
        ([3], {}, "texts are a text or a list of texts"),
        (["word " * POSITIONS], {}, f"the model has {POSITIONS} positions; shorten it"),
    ],
)
def test_mistakes_are_one_line(folder, prompts, options, message):
    with pytest.raises(QuietformerError, match=message) as refused:
        qf.OnnxModel(folder).generate(prompts, **options)
    assert "\n" not in str(refused.value)


def test_an_encoder_does_not_generate(exported_encoder):
    with pytest.raises(QuietformerError, match="without past keys and values"):
        qf.OnnxModel(exported_encoder).generate("a text")


def test_the_session_says_what_it_keeps(folder):
    assert OnnxModel(folder / "onnx" / "model_quantized.onnx").has_cache
