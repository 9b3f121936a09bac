"""GGUF files, compared with the model and the tokenizer that they were written from."""

from __future__ import annotations

import shutil
import sys

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM

import quietformer as qf
from quietformer.data.tokenizers import tokenizer_of
from quietformer.errors import QuietformerError
from quietformer.models.open_any import open_model
from tests.gguf_files import PROSE, tiny_llama, tiny_tokenizer, write_gguf


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    tokenizer = tiny_tokenizer()
    model = tiny_llama(len(tokenizer))
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return model, tokenizer, write_gguf(path, model, tokenizer)


def _tokens(tokenizer):
    return tokenizer("The loud one does nothing.", return_tensors="pt")["input_ids"]


@torch.no_grad()
def _logits(model, tokens):
    return model(input_ids=tokens).logits


def test_a_gguf_file_opens_as_the_model_it_was_written_from(known):
    model, tokenizer, path = known
    opened = open_model(str(path))
    assert isinstance(opened, LlamaForCausalLM)
    assert not opened.training
    torch.testing.assert_close(
        _logits(opened, _tokens(tokenizer)), _logits(model, _tokens(tokenizer)), rtol=0, atol=1e-5
    )
    theirs = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name)
    assert torch.equal(_logits(opened, _tokens(tokenizer)), _logits(theirs, _tokens(tokenizer)))


def test_blocks_become_float32_weights(known, tmp_path):
    model, tokenizer, _ = known
    kind = gguf.GGMLQuantizationType.Q8_0
    opened = open_model(str(write_gguf(tmp_path / "blocks.gguf", model, tokenizer, blocks=kind)))
    assert {parameter.dtype for parameter in opened.parameters()} == {torch.float32}
    weight = opened.model.layers[1].mlp.up_proj.weight
    written = model.model.layers[1].mlp.up_proj.weight.detach().numpy()
    assert np.array_equal(weight.detach().numpy(), gguf.dequantize(gguf.quantize(written, kind), kind))


def test_halves_become_float32_weights(known, tmp_path):
    model, tokenizer, _ = known
    opened = open_model(str(write_gguf(tmp_path / "half.gguf", model, tokenizer, blocks=gguf.GGMLQuantizationType.F16)))
    assert {parameter.dtype for parameter in opened.parameters()} == {torch.float32}


def test_its_tokenizer_is_the_one_written(known):
    _, tokenizer, path = known
    read = tokenizer_of(str(path))
    for text in ("The quiet head", "  unheard of: Größe 12!", "<start>loud<end>"):
        assert read(text)["input_ids"] == tokenizer(text)["input_ids"]
        assert read.decode(read(text)["input_ids"]) == text
    assert (read.bos_token_id, read.eos_token_id, read.pad_token_id) == (0, 1, 1)


def test_a_tokenizer_that_lies_beside_the_file_is_not_its_own(known, tmp_path):
    _, tokenizer, path = known
    file = shutil.copy(path, tmp_path / "tiny.gguf")
    other = tiny_tokenizer("Zebras graze; zebras gaze. " * 9)
    other.save_pretrained(tmp_path)
    text = "nothing grazes"
    assert other(text)["input_ids"] != tokenizer(text)["input_ids"]
    assert tokenizer_of(str(file))(text)["input_ids"] == tokenizer(text)["input_ids"]


def test_it_can_be_changed_saved_and_loaded(known, tmp_path):
    _, tokenizer, path = known
    opened = open_model(str(path))
    qf.apply_attention_(opened, qf.AttentionSpec(gate=qf.LinearGate.for_pretrained()))
    qf.save(opened, tmp_path / "saved", processor=tokenizer_of(str(path)))
    loaded = open_model(str(tmp_path / "saved"))
    tokens = _tokens(tokenizer_of(str(tmp_path / "saved")))
    assert torch.equal(tokens, _tokens(tokenizer))
    assert torch.equal(_logits(loaded, tokens), _logits(opened, tokens))


def test_convert_takes_it_and_draws_no_bar(known, tmp_path, run):
    _, tokenizer, path = known
    code, _, errors = run("convert", path, tmp_path / "out", "--gate", "linear(scale=2, weight_std=0)")
    assert (code, "it/s" in errors) == (0, False)
    tokens = _tokens(tokenizer)
    torch.testing.assert_close(
        _logits(qf.load(tmp_path / "out"), tokens), _logits(open_model(str(path)), tokens), rtol=0, atol=1e-5
    )


def _refusal(call, *arguments):
    with pytest.raises(QuietformerError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("call", [open_model, tokenizer_of])
def test_a_file_that_is_not_there(call, tmp_path):
    assert "nowhere.gguf is not there" in _refusal(call, str(tmp_path / "nowhere.gguf"))


@pytest.mark.parametrize("call", [open_model, tokenizer_of])
def test_without_the_package(call, known, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert "pip install quietformer[gguf]" in _refusal(call, str(known[2]))


@pytest.mark.parametrize("kept", [0.0, 0.001, 0.05, 0.3, 0.6, 0.99])
def test_a_file_cut_short(kept, known, tmp_path):
    whole = known[2].read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: int(len(whole) * kept)])
    message = _refusal(open_model, str(cut))
    assert "cut.gguf" in message
    assert "cut short" in message


@pytest.mark.parametrize("call", [open_model, tokenizer_of])
def test_a_file_that_only_has_the_name(call, tmp_path):
    file = tmp_path / "prose.gguf"
    file.write_text(PROSE, encoding="utf-8")
    assert "prose.gguf" in _refusal(call, str(file))


def test_a_file_damaged_in_its_head(known, tmp_path):
    whole = bytearray(known[2].read_bytes())
    whole[24:200] = b"\xff" * 176
    file = tmp_path / "damaged.gguf"
    file.write_bytes(whole)
    for call in (open_model, tokenizer_of):
        assert "damaged.gguf" in _refusal(call, str(file))


def test_a_file_that_lacks_a_tensor(known, tmp_path):
    model, tokenizer, _ = known
    lost = "model.layers.1.mlp.down_proj.weight"
    path = write_gguf(tmp_path / "less.gguf", model, tokenizer, without=(lost,))
    assert lost in _refusal(open_model, str(path))


def test_a_file_without_a_tokenizer(known, tmp_path):
    path = write_gguf(tmp_path / "mute.gguf", known[0], None)
    assert "has no tokenizer" in _refusal(tokenizer_of, str(path))


def test_an_architecture_transformers_does_not_read(known, tmp_path):
    path = write_gguf(tmp_path / "odd.gguf", known[0], known[1], architecture="rwkv7")
    assert "rwkv7" in _refusal(open_model, str(path))


def test_a_gguf_file_of_two_billion_layers_is_refused_before_they_are_built(known, tmp_path):
    damaged = known[2].read_bytes()
    value = damaged.index(b"llama.block_count") + len(b"llama.block_count") + 4  # behind the type of the value
    (tmp_path / "deep.gguf").write_bytes(damaged[:value] + (2**31 - 1).to_bytes(4, "little") + damaged[value + 4 :])
    with pytest.raises(QuietformerError, match=r"deep\.gguf: num_hidden_layers must lie between -1 and 4096"):
        open_model(str(tmp_path / "deep.gguf"))
