"""Saving and loading a whole model folder, with nothing to remember.

The folder is an ordinary transformers one but for two things, so that it never loads as vanilla attention in silence:
config.json names an attention that only `import quietformer` makes known, and the weights lie in
`quietformer.safetensors`, where only our loader looks (docs/adr/0003).
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import transformers
from huggingface_hub import try_to_load_from_cache
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.auto.configuration_auto import model_type_to_module_name

from quietformer.attention.inject import apply_attention_, attention_cores
from quietformer.attention.layers import CORE
from quietformer.errors import CheckpointError, QuietformerError, in_one_line
from quietformer.families.gained import GAIN, gain_, gained_activations, gained_norms
from quietformer.families.vit import NORM, add_patch_norm_
from quietformer.files import whole_folder
from quietformer.model_spec import ModelSpec
from quietformer.quant.place import HOLDER, place_, quantizers
from quietformer.section import METHOD, QuietformerSection, model_spec

PLAIN, OURS = "model", "quietformer"
"""Stems of the weight files: transformers' own, and the one it does not look for."""
PROCESSOR_FILES = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "vocab.bpe", "merges.txt",
    "special_tokens_map.json", "added_tokens.json", "spiece.model", "sentencepiece*.model", "spm*.model", "*.spm",
    "*.tiktoken", "bpe.codes", "dict.txt", "normalizer.json", "chat_template.*", "preprocessor_config.json",
    "processor_config.json", "video_preprocessor_config.json", "generation_config.json",
)  # fmt: skip


STALE = (f"{PLAIN}*.safetensors*", f"{OURS}*.safetensors*", "pytorch_model*.bin", *PROCESSOR_FILES)
"""An earlier model's weights and tokenizer, which saving into its folder replaces."""


def save(model: nn.Module, folder: str | os.PathLike[str], *, processor: Any = None) -> None:
    """Write the model, its spec and its tokenizer or processor into one folder, all or nothing.

    Without `processor`, the tokenizer files of the local folder the model came from are taken along.
    """
    if isinstance(model, PreTrainedModel) and _is_plain(model):
        raise QuietformerError("nothing of Quietformer is in this model; save it with model.save_pretrained")
    write_folder(model, folder, processor=processor)


def write_folder(
    model: nn.Module,
    folder: str | os.PathLike[str],
    *,
    processor: Any = None,
    state_dict: dict[str, Tensor] | None = None,
) -> None:
    """As `save`, for a model that may have nothing of ours, or whose weights were gathered from several processes."""
    folder = Path(folder)
    if not isinstance(model, PreTrainedModel):
        raise QuietformerError(
            f"{type(model).__name__} is not a transformers model; save takes the model inside its wrapper"
        )
    plain = _is_plain(model)
    if not plain:
        _check_described(model)
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / "config.json").is_file())):
        raise QuietformerError(f"{folder} exists and is not a model folder; choose another place")
    try:
        with whole_folder(folder, stale=STALE) as draft, quiet_transformers():
            gathered: dict[str, Any] = {} if state_dict is None else {"state_dict": state_dict}
            model.save_pretrained(draft, **gathered)
            if not plain:
                _rename_weights(draft)
            copy_processor(model, processor, draft)
            if not plain and not (draft / "README.md").exists() and not (folder / "README.md").exists():
                (draft / "README.md").write_text(_readme(model_spec(model)), encoding="utf-8")
    except SafetensorError as error:
        raise QuietformerError(f"cannot write {folder}: {in_one_line(error)}") from error


def _is_plain(model: PreTrainedModel) -> bool:
    changed = any(True for _ in attention_cores(model)) or gained_norms(model) or gained_activations(model)
    return model_spec(model) == ModelSpec() and not changed


def _check_described(model: PreTrainedModel) -> None:
    """What the section says must be what is in the model, or the folder would load as something else."""
    spec = model_spec(model)
    inside = {core.spec for _, core in attention_cores(model)}
    if inside != ({spec.attention} if spec.attention is not None else set()):
        raise QuietformerError(
            f"the attention was applied to a part of this {type(model).__name__} only, which a folder cannot say; "
            "apply it to the whole model, or save the part"
        )
    gained = {*_named_for(model, dict.fromkeys(spec.gained_norms, 0)), *_named_for(model, spec.gained_activations)}
    if {*gained_norms(model), *gained_activations(model)} != gained:
        raise QuietformerError(
            f"the residual sums of a part of this {type(model).__name__} only are balanced, which a folder cannot say; "
            "balance the whole model, or save the part"
        )
    placed = quantizers(model)
    if set(placed) != set(spec.quantized.sites if spec.quantized else ()):
        raise QuietformerError(
            f"quantizers were put into a part of this {type(model).__name__} only, which a folder cannot say; "
            "quantize the whole model, or save the part"
        )
    if waiting := [site for site, quantizer in placed.items() if not quantizer.calibrated]:
        raise QuietformerError(f"{waiting[0]} is not calibrated; call calibrate_ before saving")
    for _, core in attention_cores(model):
        step = getattr(core.normalizer, "step", None)
        if step is not None and int(step) == 0:
            warnings.warn(f"{core.spec.normalizer} is saved with its warm-up at step 0: gamma is still 0", stacklevel=3)
            break


def _readme(spec: ModelSpec) -> str:
    """Whoever finds the folder without us is told what it needs."""
    return (
        "# A Quietformer model\n\n"
        f"Attention: `{spec.attention.label if spec.attention else 'softmax'}`. {_precision(spec)}"
        "Plain transformers cannot load this folder. "
        "Install quietformer, then\n\n"
        "```python\nimport quietformer\nmodel = quietformer.load(folder)  # or AutoModel....from_pretrained(folder)\n```\n"
    )


def _precision(spec: ModelSpec) -> str:
    if spec.quantized is None:
        return ""
    return (
        f"Simulated {spec.quantized.spec.label} quantization at {len(spec.quantized.sites)} sites, calibrated; the weights are "
        "stored in floating point. `quietformer export` makes integers of them. "
    )


def load(folder: str | os.PathLike[str], *, trust_remote_code: bool = False) -> PreTrainedModel:
    """The model of a folder written by `save`, or by `save_pretrained` of a changed model; in eval mode."""
    folder = Path(folder).expanduser()
    config = _read_config(folder)
    section = config.get("quantization_config")
    if not isinstance(section, dict) or section.get("quant_method") != METHOD:
        raise CheckpointError(
            f"{folder / 'config.json'} has no quietformer section: a plain transformers model is loaded with "
            "AutoModel.from_pretrained and changed with apply_attention_"
        )
    try:
        QuietformerSection.from_dict(section).spec  # noqa: B018 - read for its errors
    except QuietformerError as error:
        raise CheckpointError(f"{folder / 'config.json'}: {error}") from None
    _check_weight_files(folder, section.get("weights", f"{PLAIN}.safetensors"))
    model_class = _model_class(folder, config, trust_remote_code)
    with quiet_transformers():
        try:
            model, info = model_class.from_pretrained(
                str(folder),
                dtype="auto",
                output_loading_info=True,
                trust_remote_code=trust_remote_code,
                local_files_only=True,
            )
        except QuietformerError as error:
            raise CheckpointError(f"{folder}: {error}") from None
        except Exception as error:  # whatever a damaged config makes transformers stumble over
            raise CheckpointError(f"{folder} does not load: {in_one_line(error)}") from error
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[what]:
            keys = sorted(str(key[0] if isinstance(key, tuple) else key) for key in info[what])
            raise CheckpointError(
                f"{folder}: {len(keys)} {what.replace('_keys', '')} tensors in the weights, first {keys[0]!r}; "
                "the weights do not belong to this config.json"
            )
    if waiting := [site for site, quantizer in quantizers(model).items() if not quantizer.calibrated]:
        raise CheckpointError(f"{folder}: {waiting[0]} has no usable scale in the weights; quantize the model again")
    loaded: PreTrainedModel = model
    return loaded


def put_in_(model: PreTrainedModel, spec: ModelSpec, weight_files: list[str] | None = None) -> None:
    """Everything a spec describes, into a model that has none of it; its tensors must be in the files to come."""
    if spec.patch_norm is not None:
        add_patch_norm_(model, spec.patch_norm)
    if spec.gained_norms or spec.gained_activations:
        norms = _named_for(model, dict.fromkeys(spec.gained_norms, 0))
        gain_(model, norms, _named_for(model, spec.gained_activations))
    if spec.attention is not None:
        apply_attention_(model, spec.attention)
    if spec.quantized is not None:
        place_(model, spec.quantized.model_copy(update={"sites": _named_for(model, spec.quantized.sites)}))
    _check_core_tensors(model, weight_files)


def _named_for(model: PreTrainedModel, named: dict[str, Any]) -> dict[str, Any]:
    """Modules as this class names them: transformers loads a base model from the folder of one with a head, and back."""
    prefix = f"{model.base_model_prefix}."
    has_base = model.base_model is not model
    if has_base and not any(name.startswith(prefix) for name in named):
        return {f"{prefix}{name}": code for name, code in named.items()}
    if not has_base and any(name.startswith(prefix) for name in named):
        # What lacks the prefix is the head's, which this class does not have.
        return {name.removeprefix(prefix): code for name, code in named.items() if name.startswith(prefix)}
    return named


def _check_core_tensors(model: PreTrainedModel, files: list[str] | None) -> None:
    """Every kind of tensor we added is in the files; names on disk may differ in what stands before."""

    def tails(names: Any) -> set[str]:
        marks = (f".{CORE}.", f".{NORM}.", f".{HOLDER}.", f".{GAIN}")
        return {mark + f".{name}".rpartition(mark)[2] for name in names for mark in marks if mark in f".{name}"}

    if not files or not all(str(file).endswith(".safetensors") for file in files):
        return
    stored: set[str] = set()
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            stored |= tails(tensors.keys())
    if missing := sorted(tails(model.state_dict()) - stored):
        raise CheckpointError(
            f"the weights lack {', '.join(name.strip('.') for name in missing)}, which the spec needs"
        )


def _read_config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        what = "a file" if folder.exists() else "not there"
        raise CheckpointError(f"{folder} is {what}; load takes a folder written by quietformer.save")
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has no config.json, so it is not a model folder") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {in_one_line(error)}") from None
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
        return _check_safetensors(path)
    if not index.is_file():
        raise CheckpointError(f"{path} is not there: the folder has lost its weights")
    try:
        shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{index} is not a weight index: {in_one_line(error)}") from None
    for shard in shards:
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise CheckpointError(f"{index} names {shard!r}, which is not a file of the folder")
        if not (folder / shard).is_file():
            raise CheckpointError(f"{folder / shard}, named in {index.name}, is not there")
        _check_safetensors(folder / shard)


def _check_safetensors(path: Path) -> None:
    try:
        with safe_open(path, framework="pt") as tensors:
            if not list(tensors.keys()):
                raise CheckpointError(f"{path} holds no tensors")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged or cut short: {in_one_line(error)}; fetch or save it again") from None


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


def _rename_weights(draft: Path) -> None:
    """Give the weight files a name plain transformers does not look for, and say so in config.json."""
    for path in sorted(draft.glob(f"{PLAIN}*.safetensors")):
        path.rename(draft / path.name.replace(PLAIN, OURS, 1))
    name = f"{OURS}.safetensors"
    if (index := draft / f"{PLAIN}.safetensors.index.json").is_file():
        content = json.loads(index.read_text(encoding="utf-8"))
        content["weight_map"] = {key: file.replace(PLAIN, OURS, 1) for key, file in content["weight_map"].items()}
        name = index.name.replace(PLAIN, OURS, 1)
        _write_json(draft / name, content)
        index.unlink()
    config = json.loads((draft / "config.json").read_text(encoding="utf-8"))
    for section in _sections(config):
        section["weights"] = name
    _write_json(draft / "config.json", config)


def _sections(config: Any) -> Iterator[dict[str, Any]]:
    """Ours, of the model and of every part that could be loaded by itself."""
    if isinstance(config, dict):
        if isinstance(section := config.get("quantization_config"), dict) and section.get("quant_method") == METHOD:
            yield section
        for value in config.values():
            yield from _sections(value)


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def copy_processor(model: PreTrainedModel, processor: Any, draft: Path) -> None:
    """The tokenizer or processor given, or the files of the folder the model came from."""
    if processor is not None:
        processor.save_pretrained(draft)
        return
    name = str(model.config.name_or_path or "")
    if not name:
        return
    origin = Path(name)
    if not origin.is_dir():
        # A hub id: whatever lies in the cache beside its config; nothing is fetched.
        config = try_to_load_from_cache(name, "config.json") if name.count("/") <= 1 else None
        if not isinstance(config, str):
            return
        origin = Path(config).parent
    for pattern in PROCESSOR_FILES:
        for path in origin.glob(pattern):
            if path.is_file() and not (draft / path.name).exists():
                shutil.copy2(path, draft / path.name)


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Its bars, retries and reports of missing tensors are worth less than the one line we make of them."""
    logging: Any = transformers.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    hub_logging: Any = huggingface_hub.logging
    hub_verbosity = hub_logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    hub_logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        hub_logging.set_verbosity(hub_verbosity)
        if bars:
            logging.enable_progress_bar()
