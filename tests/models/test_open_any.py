"""GGUF files, written here from a model and a tokenizer that are known, as llama.cpp lays them out."""

from __future__ import annotations

import json
import shutil
import sys

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import quietformer as qf
from quietformer.data.tokenizers import tokenizer_of
from quietformer.errors import QuietformerError
from quietformer.models.open_any import open_model

PROSE = "The quiet head does nothing at all, and so the loud one need not shout. " * 3
NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _tokenizer(text=PROSE):
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<start>", "<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([text], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<start>", eos_token="<end>", pad_token="<end>")


def _model(vocabulary):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=64, max_position_embeddings=64, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model


def _pairs_beside_each_other(weight, heads):
    """llama.cpp rotates neighbouring rows, transformers a row of each half."""
    halves = weight.reshape(heads, 2, -1, weight.shape[-1])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def _write(path, model, tokenizer, *, blocks=None, without=(), architecture="llama"):
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("Tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    if tokenizer is not None:
        vocabulary = tokenizer.get_vocab()
        tokens = sorted(vocabulary, key=vocabulary.__getitem__)
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(tokens)
        kinds = {True: gguf.TokenType.CONTROL, False: gguf.TokenType.NORMAL}
        writer.add_token_types([kinds[token in tokenizer.all_special_tokens] for token in tokens])
        writer.add_token_merges(_merges(tokenizer))
        writer.add_bos_token_id(tokenizer.bos_token_id)
        writer.add_eos_token_id(tokenizer.eos_token_id)
        writer.add_pad_token_id(tokenizer.pad_token_id)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" or name in without:
            continue
        value = tensor.numpy()
        place = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}.get(name)
        if place is None:
            _, _, layer, inner = name.removesuffix(".weight").split(".", 3)
            place = f"blk.{layer}.{NAMES[inner]}.weight"
            if inner.endswith(("q_proj", "k_proj")):
                heads = config.num_attention_heads if inner.endswith("q_proj") else config.num_key_value_heads
                value = _pairs_beside_each_other(value, heads)
        if blocks is None or value.ndim == 1:
            writer.add_tensor(place, np.ascontiguousarray(value))
        else:
            writer.add_tensor(place, gguf.quantize(np.ascontiguousarray(value), blocks), raw_dtype=blocks)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _merges(tokenizer):
    return [" ".join(pair) for pair in json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]]


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    tokenizer = _tokenizer()
    model = _model(len(tokenizer))
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return model, tokenizer, _write(path, model, tokenizer)


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
    opened = open_model(str(_write(tmp_path / "blocks.gguf", model, tokenizer, blocks=kind)))
    assert {parameter.dtype for parameter in opened.parameters()} == {torch.float32}
    weight = opened.model.layers[1].mlp.up_proj.weight
    written = model.model.layers[1].mlp.up_proj.weight.detach().numpy()
    assert np.array_equal(weight.detach().numpy(), gguf.dequantize(gguf.quantize(written, kind), kind))


def test_halves_become_float32_weights(known, tmp_path):
    model, tokenizer, _ = known
    opened = open_model(str(_write(tmp_path / "half.gguf", model, tokenizer, blocks=gguf.GGMLQuantizationType.F16)))
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
    other = _tokenizer("Zebras graze; zebras gaze. " * 9)
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
    path = _write(tmp_path / "less.gguf", model, tokenizer, without=(lost,))
    assert lost in _refusal(open_model, str(path))


def test_a_file_without_a_tokenizer(known, tmp_path):
    path = _write(tmp_path / "mute.gguf", known[0], None)
    assert "has no tokenizer" in _refusal(tokenizer_of, str(path))


def test_an_architecture_transformers_does_not_read(known, tmp_path):
    path = _write(tmp_path / "odd.gguf", known[0], known[1], architecture="rwkv7")
    assert "rwkv7" in _refusal(open_model, str(path))
