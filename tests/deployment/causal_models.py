"""Tiny language models of several families, and a tokenizer, to export and generate with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from quietformer.data.tokenizers import train_tokenizer
from tests.deployment.exports import TEXTS

VOCABULARY, POSITIONS = 200, 96


def tiny_causal(name: str, vocabulary: int = VOCABULARY) -> Any:
    """Weights are spread out, so that the most likely tokens differ from place to place."""
    torch.manual_seed(0)
    common: dict[str, Any] = {"vocab_size": vocabulary, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": POSITIONS}
    made: dict[str, Any] = {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(intermediate_size=64, **sizes, **common)),
        "grouped": lambda: LlamaForCausalLM(LlamaConfig(intermediate_size=64, num_key_value_heads=2, **sizes, **common)),
        "sliding": lambda: Qwen2ForCausalLM(
            Qwen2Config(
                intermediate_size=64, num_key_value_heads=1, use_sliding_window=True, sliding_window=6, max_window_layers=1,
                **sizes, **common,
            )
        ),
        "opt": lambda: OPTForCausalLM(OPTConfig(ffn_dim=64, word_embed_proj_dim=32, **sizes, **common)),
        "gpt2": lambda: GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=POSITIONS, **common)),
    }  # fmt: skip
    model = made[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.15)
    return model


def write_causal(folder: Path, name: str = "grouped") -> Path:
    """A model folder with a tokenizer."""
    tokenizer = train_tokenizer(TEXTS, vocabulary=VOCABULARY, characters=10_000, task="pairs")
    tiny_causal(name, len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
