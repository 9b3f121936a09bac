"""A model by whatever name the user gives it: a folder of ours, a folder of transformers', or a hub id."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoConfig, AutoModel, PreTrainedModel

from quietformer.checkpoint import load
from quietformer.errors import QuietformerError
from quietformer.section import METHOD


def open_model(source: str, *, trust_remote_code: bool = False) -> PreTrainedModel:
    """The model in eval mode, of the class its config names; only safetensors, and nothing remote unless named."""
    folder = Path(source)
    if folder.is_dir() and _is_ours(folder):
        return load(folder, trust_remote_code=trust_remote_code)
    if not folder.is_dir() and (folder.exists() or source.count("/") > 1 or source.startswith((".", "/", "~"))):
        raise QuietformerError(
            f"{source} is {'a file' if folder.exists() else 'not there'}; give a model folder or a hub id"
        )
    common: dict[str, Any] = {"trust_remote_code": trust_remote_code, "local_files_only": folder.is_dir()}
    try:
        config = AutoConfig.from_pretrained(source, **common)
        names = config.architectures or []
        model_class = getattr(transformers, names[0], AutoModel) if len(names) == 1 else AutoModel
        model = model_class.from_pretrained(source, config=config, dtype="auto", use_safetensors=True, **common)
    except (OSError, ValueError, RuntimeError, KeyError, ImportError) as error:
        lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
        raise QuietformerError(f"cannot load {source}: {lines[0] if lines else type(error).__name__}") from error
    opened: PreTrainedModel = model
    return opened


def _is_ours(folder: Path) -> bool:
    """Whether the folder says so; a damaged one is left for `load` to name what is wrong."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return bool(config.get("quantization_config", {}).get("quant_method") == METHOD)
    except (OSError, ValueError, AttributeError):
        return any(folder.glob("quietformer*.safetensors*"))
