"""Loading a model folder that `save` wrote, with all of its changes.

The folder is an ordinary transformers one but for two things, so that it never loads as vanilla attention in silence:
config.json names an attention that only `import quietformer` makes known, and the weights lie in
`quietformer.safetensors`, where only our loader looks (docs/adr/0003).
"""

from __future__ import annotations

import contextlib
import importlib
import os
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedModel
from transformers.models.auto.configuration_auto import model_type_to_module_name

from quietformer.config.recorded_changes import METHOD, RecordedChanges
from quietformer.errors import CheckpointError, QuietformerError, in_one_line
from quietformer.files import clear_leftovers, read_json
from quietformer.models.check_folder import CONFIG_REMEDY, check_finite, check_folder, check_safetensors, shards_of
from quietformer.models.folder_files import PLAIN
from quietformer.models.silence_transformers import silenced_transformers
from quietformer.models.whole_model import NO_POOLER, lacks_pooler
from quietformer.quant.insertion import quantizers


def load(folder: str | os.PathLike[str], *, trust_remote_code: bool = False) -> PreTrainedModel:
    """The model of a folder written by `save`, or by `save_pretrained` of a changed model; in eval mode."""
    folder = Path(folder).expanduser()
    clear_leftovers(folder)
    config = _read_config(folder)
    check_folder(folder)
    section = config.get("quantization_config")
    if not isinstance(section, dict) or section.get("quant_method") != METHOD:
        raise CheckpointError(
            f"{folder / 'config.json'} has no quietformer section: a plain transformers model is loaded with "
            "AutoModel.from_pretrained and changed with apply_attention_"
        )
    try:
        RecordedChanges.from_dict(section).spec  # noqa: B018 - read for its errors
    except QuietformerError as error:
        raise CheckpointError(f"{folder / 'config.json'}: {error}") from None
    _check_weight_files(folder, section.get("weights", f"{PLAIN}.safetensors"))
    model_class = _model_class(folder, config, trust_remote_code)
    model, info = _from_pretrained(model_class, folder, trust_remote_code=trust_remote_code)
    if lacks_pooler(model, set(map(str, info["missing_keys"]))):  # as it was when it was saved
        model, info = _from_pretrained(model_class, folder, trust_remote_code=trust_remote_code, **NO_POOLER)
    for name, got, needed in sorted(info["mismatched_keys"])[:1]:
        raise CheckpointError(
            f"{folder}: {name} has shape {tuple(got)} in the weights, the model needs {tuple(needed)}; the weights do not "
            "belong to this config.json"
        )
    for what in ("missing_keys", "unexpected_keys"):
        if info[what]:
            keys = sorted(map(str, info[what]))
            raise CheckpointError(
                f"{folder}: {len(keys)} {what.replace('_keys', '')} tensors in the weights, first {keys[0]!r}; "
                "the weights do not belong to this config.json"
            )
    if waiting := [site for site, quantizer in quantizers(model).items() if not quantizer.calibrated]:
        raise CheckpointError(f"{folder}: {waiting[0]} has no usable scale in the weights; quantize the model again")
    check_finite(model)
    model.config.return_dict = True  # outputs are read by name
    return model


def _from_pretrained(model_class: Any, folder: Path, **options: Any) -> tuple[PreTrainedModel, dict[str, Any]]:
    with silenced_transformers():
        try:
            found: tuple[PreTrainedModel, dict[str, Any]] = model_class.from_pretrained(
                str(folder),
                dtype="auto",
                output_loading_info=True,
                local_files_only=True,
                ignore_mismatched_sizes=True,  # told below, with both shapes
                **options,
            )
            return found
        except QuietformerError as error:
            raise CheckpointError(f"{folder}: {error}") from None
        except Exception as error:  # whatever a damaged config makes transformers stumble over
            raise CheckpointError(f"{folder} does not load: {in_one_line(error)}; {CONFIG_REMEDY}") from error


def _read_config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        what = "a file" if folder.exists() else "not there"
        raise CheckpointError(
            f"{folder} is {what}; load takes a folder written by quietformer.save, "
            "and quietformer.open_model takes any model by name"
        )
    path = folder / "config.json"
    config = read_json(path, f"{folder} has no config.json, so it is not a model folder", CheckpointError)
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} must hold a JSON object, got {type(config).__name__}")
    return config


def _check_weight_files(folder: Path, name: Any) -> None:
    """Every weight file is there and whole, before anything is built."""
    if not isinstance(name, str) or Path(name).name != name:
        raise CheckpointError(f"{folder / 'config.json'}: weights must be a file name, got {name!r}")
    path = folder / name
    index = path if name.endswith(".index.json") else folder / f"{name}.index.json"
    if path.is_file() and path != index:
        return check_safetensors(path)
    if not index.is_file():
        raise CheckpointError(f"{path} is not there: the folder has lost its weights")
    for shard in shards_of(index):
        check_safetensors(shard)


def _model_class(folder: Path, config: dict[str, Any], trust_remote_code: bool) -> Any:
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise CheckpointError(f"{folder / 'config.json'}: architectures must name one class, got {names!r}")
    known = find_class(names[0], str(config.get("model_type")))
    if isinstance(known, type) and issubclass(known, PreTrainedModel) and known.config_class is not None:
        if (got := config.get("model_type")) != (expected := known.config_class.model_type):
            raise CheckpointError(f"{folder / 'config.json'}: {names[0]} has model_type {expected!r}, got {got!r}")
        return known
    remote = config.get("auto_map")
    if isinstance(remote, dict) and trust_remote_code:
        auto = next((name for name in remote if name.startswith("AutoModel")), "AutoModel")
        return getattr(transformers, auto)
    hint = (
        "it needs its own code: pass trust_remote_code=True if you trust it" if remote else "not in this transformers"
    )
    raise CheckpointError(f"{folder / 'config.json'}: unknown architecture {names[0]!r}; {hint}")


def find_class(name: str, model_type: str) -> Any:
    """A class of transformers, exported at the top or only in the folder of its model type."""
    if (known := getattr(transformers, name, None)) is not None:
        return known
    family = model_type_to_module_name(model_type)
    for module in (f"transformers.models.{family}.modeling_{family}", f"transformers.models.{family}"):
        with contextlib.suppress(ImportError):
            if (known := getattr(importlib.import_module(module), name, None)) is not None:
                return known
    return None
