"""Small models of every kind that clients load, with their tokenizers, and texts to calibrate and try them on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel

from quietformer.data.tokenizers import train_tokenizer

TOPICS = ("cats", "rivers", "bridges", "stars", "bread", "chess", "violins", "trains", "clocks", "maps")
TEXTS = [
    f"This first sentence is about {topic} and {number}. The rest of it says more of {topic}. It ends."
    for number in ("red", "green", "blue")
    for topic in TOPICS
]
OTHER = [
    "A short one.",
    "Cats and clocks.",
    "x",
    "This says more of rivers, of bread and of violins than it needs to. " * 9,
]
"""Of several lengths, the last longer than the models take."""
LABELS = {0: "calm", 1: "loud", 2: "neither"}
LENGTH = 40


def write_model(folder: Path, kind: type[Any] = BertModel, **fields: Any) -> Path:
    """A model with spread-out weights, so that its outputs differ by text; its tokenizer has a tokenizer.json."""
    tokenizer = train_tokenizer(TEXTS, vocabulary=300, characters=10_000, task="pairs")
    tokenizer.model_max_length = 64
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=64, **fields,
    )  # fmt: skip
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_classifier(folder: Path) -> Path:
    return write_model(folder, BertForSequenceClassification, id2label=LABELS, num_labels=len(LABELS))


def write_encoder(folder: Path, pooling: str = "pooling_mode_cls_token", *, normalize: bool = True) -> Path:
    """With the settings of sentence-transformers: a length, two prompts and a pooling that is not the usual one."""
    write_model(folder)
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), *([("2_Normalize", "Normalize")] * normalize)]
    files: dict[str, Any] = {
        "modules.json": [
            {"idx": place, "name": str(place), "type": f"sentence_transformers.models.{kind}", "path": path}
            for place, (path, kind) in enumerate(kinds)
        ],
        "1_Pooling/config.json": {"word_embedding_dimension": 32, pooling: True},
        "sentence_bert_config.json": {"max_seq_length": LENGTH, "do_lower_case": False},
        "config_sentence_transformers.json": {
            "prompts": {"query": "find: ", "passage": ""},
            "default_prompt_name": None,
        },
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return folder


def small(folder: Path) -> dict[str, Any]:
    """Options that make an export quick."""
    (folder.parent / "texts.txt").write_text("\n".join(TEXTS))
    return {
        "texts": folder.parent / "texts.txt", "sequences": 6, "calibration": 1, "batch_size": 4, "length": 24,
        "timed": False, "search": False, "per_channel": True,
    }  # fmt: skip
