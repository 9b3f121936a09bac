"""Tiny models for the tests, random but with attention far from uniform, and every variant to try on them."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
    ViTConfig,
    ViTForImageClassification,
)

import quietformer as qf
from quietformer.config.attention import gates, normalizers

VOCABULARY = 99
LENGTH = 9


def _bert() -> PreTrainedModel:
    return BertForMaskedLM(
        BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=64,
            attn_implementation="eager",
        )
    )


def _opt() -> PreTrainedModel:
    return OPTForCausalLM(
        OPTConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            word_embed_proj_dim=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            ffn_dim=64,
            max_position_embeddings=64,
            pad_token_id=1,
            bos_token_id=2,
            eos_token_id=2,
            attn_implementation="eager",
        )
    )


def _vit() -> PreTrainedModel:
    return ViTForImageClassification(
        ViTConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            image_size=16,
            patch_size=4,
            num_labels=5,
            attn_implementation="eager",
        )
    )


def _llama() -> PreTrainedModel:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=64,
            max_position_embeddings=64,
            attn_implementation="eager",
        )
    )


def _gpt2() -> PreTrainedModel:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=64,
            bos_token_id=2,
            eos_token_id=2,
            attn_implementation="eager",
        )
    )


_MODELS = {"bert": _bert, "opt": _opt, "vit": _vit, "llama": _llama, "gpt2": _gpt2}
PAPER = ("bert", "opt", "vit")
CAUSAL = ("opt", "llama", "gpt2")


def build(name: str, *, seed: int = 0) -> PreTrainedModel:
    """An eval-mode model whose weights are large enough for attention to matter."""
    torch.manual_seed(seed)
    model = _MODELS[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0.0, 0.2)
    return model.eval()


def inputs(name: str, *, padded: bool = False) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=generator)}
    tokens = torch.randint(3, VOCABULARY, (2, LENGTH), generator=generator)
    mask = torch.ones_like(tokens)
    if padded:
        mask[1, -3:] = 0
    return {"input_ids": tokens, "attention_mask": mask}


@torch.no_grad()
def logits(model: PreTrainedModel, given: dict[str, torch.Tensor]) -> torch.Tensor:
    result: torch.Tensor = model(**given).logits
    return result


def variants() -> dict[str, qf.AttentionSpec]:
    """Every registered normalizer and gate, and the fields that change what they compute."""
    specs: dict[str, Any] = {name: qf.AttentionSpec(normalizer=normalizers[name]()) for name in normalizers}
    specs |= {f"gate-{name}": qf.AttentionSpec(gate=gates[name](pi_init=0.25)) for name in gates}
    specs["clipped-gamma"] = qf.AttentionSpec(normalizer=qf.ClippedSoftmax(gamma=-0.03, zeta=1.03))
    specs["clipped-row"] = qf.AttentionSpec(normalizer=qf.ClippedSoftmax(alpha=0.5, keys="row"))
    specs["clipped-warmup"] = qf.AttentionSpec(normalizer=qf.ClippedSoftmax(alpha=0.5, keys="row", warmup_steps=10))
    specs["both"] = qf.AttentionSpec(normalizer=qf.ClippedSoftmax(gamma=-0.03), gate=qf.LinearGate.for_pretrained())
    return specs


VARIANTS = variants()
