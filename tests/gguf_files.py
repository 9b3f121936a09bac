"""Small GGUF files, written from a model and a tokenizer that are known, as llama.cpp lays them out."""

from __future__ import annotations

import json

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

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


def tiny_tokenizer(text=PROSE):
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


def tiny_llama(vocabulary):
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


def write_gguf(path, model, tokenizer, *, blocks=None, without=(), architecture="llama"):
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
