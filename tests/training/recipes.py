"""Tiny runs for the tests: a text of the standard library and models of a few thousand weights."""

from __future__ import annotations

from pathlib import Path
from pydoc_data.topics import topics

from quietformer.config.recipe import Recipe

MODELS = {
    "masked": {
        "model_type": "bert", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    },
    "causal": {
        "model_type": "opt", "hidden_size": 32, "word_embed_proj_dim": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "ffn_dim": 64,
    },
    "images": {
        "model_type": "vit", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
        "image_size": 8, "patch_size": 4, "num_channels": 1,
    },
}  # fmt: skip


def write_prose(path: Path, count: int = 25) -> Path:
    """One topic of Python's language reference a line."""
    path.write_text("\n".join(" ".join(text.split()) for _, text in sorted(topics.items())[:count]))
    return path


def tiny(task: str, source: Path | str, **changes: dict[str, object]) -> dict[str, object]:
    """The fields of a recipe that trains in about a second; `changes` by section."""
    fields: dict[str, dict[str, object]] = {
        "model": {"config": MODELS[task], "dropout": 0.1},
        "tokenizer": {"vocabulary": 300},
        "data": {"train": str(source), "length": 16, "hold_out": 16},
        "optimizer": {"learning_rate": 1e-3},
        "schedule": {"warmup_steps": 4},
        "training": {
            "steps": 12, "batch_size": 8, "save_every": 4, "evaluate_every": 6, "log_every": 3, "outliers_every": 5,
        },
    }  # fmt: skip
    for section, values in changes.items():
        fields[section] = fields.get(section, {}) | values if isinstance(values, dict) else values
    return {"name": "tiny", "task": task, **fields}


def tiny_recipe(task: str, source: Path | str, **changes: dict[str, object]) -> Recipe:
    return Recipe(**tiny(task, source, **changes))
