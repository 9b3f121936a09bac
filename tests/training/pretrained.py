"""Tiny pretrained models with tokenizers in folders, and one with an outlier of the kind real models have."""

from __future__ import annotations

from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    MPNetConfig,
    MPNetModel,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
    ViTConfig,
    ViTForImageClassification,
)

from quietformer.data.tokenizers import train_tokenizer

VOCABULARY, WIDTH = 320, 64
SIZES: dict[str, Any] = {
    "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": VOCABULARY,
    "max_position_embeddings": 80,
}  # fmt: skip
PIXELS: dict[str, Any] = {
    "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "image_size": 8,
    "patch_size": 4, "num_channels": 1, "num_labels": 10,
}  # fmt: skip
MODELS = {
    "encoder": lambda: BertModel(BertConfig(**SIZES)),
    "mpnet": lambda: MPNetModel(MPNetConfig(**SIZES)),
    "masked": lambda: BertForMaskedLM(BertConfig(**SIZES)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=1)),
    "opt": lambda: OPTForCausalLM(OPTConfig(**SIZES, ffn_dim=64, word_embed_proj_dim=WIDTH, pad_token_id=0)),
    "vit": lambda: ViTForImageClassification(ViTConfig(**PIXELS)),
}
UNITS = {"encoder": "passages", "mpnet": "passages", "vit": "images"}


def tiny_pretrained(folder: Path, name: str = "encoder", *, outlier: float = 0.0) -> Path:
    """A model of random weights, saved with a tokenizer; `outlier` is what one feature of the first FFN has at [SEP]."""
    torch.manual_seed(0)
    model = MODELS[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0.0, 0.1)
    if name != "vit":
        texts = (topics[key] for key in sorted(topics))
        tokenizer = train_tokenizer(texts, vocabulary=VOCABULARY, characters=20_000)
        tokenizer.save_pretrained(folder)
        if outlier:
            _plant_(model, tokenizer.sep_token_id, outlier)
    model.save_pretrained(folder)
    return folder


@torch.no_grad()
def _plant_(model: PreTrainedModel, token: int, size: float) -> None:
    """One token stands out in one feature; a unit of the first FFN sees it and writes `size` into another feature."""
    layer = model.encoder.layer[0]
    model.embeddings.word_embeddings.weight[:, 0] = 0.0
    model.embeddings.word_embeddings.weight[token] = 0.0
    model.embeddings.word_embeddings.weight[token, 0] = 10.0
    first, last = layer.intermediate.dense, layer.output.dense
    first.weight[7], first.bias[7] = 0.0, -20.0
    first.weight[7, 0] = 6.0
    last.weight[:, 7] = 0.0
    last.weight[5, 7] = size / 20.0
