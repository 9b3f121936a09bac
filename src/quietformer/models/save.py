"""Saving a model folder that never loads as vanilla attention in silence (docs/adr/0003)."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import PreTrainedModel

from quietformer.attention.inject import attention_cores
from quietformer.attention.prefix import prefixes
from quietformer.config.model_changes import ModelChanges
from quietformer.config.recorded_changes import METHOD, changes_of
from quietformer.errors import QuietformerError, QuietformerWarning, in_one_line
from quietformer.files import check_free, free_in_words, whole_folder
from quietformer.models.apply_changes import _named_for
from quietformer.models.folder_files import OURS, PLAIN, PROCESSOR_FILES, STALE
from quietformer.models.generation_settings import save_with_settings
from quietformer.models.origin import copy_sentence_files, origin_of
from quietformer.models.silence_transformers import silenced_transformers
from quietformer.quant.insertion import quantizers
from quietformer.transforms.gained_modules import gained_activations, gained_norms
from quietformer.transforms.smoothquant import MIGRATION

NEEDS_IMPORT = "a Quietformer model: pip install quietformer, and import quietformer before it is loaded"
"""Stands in config.json where plain transformers looks for the name of the weights; it quotes this when it refuses it."""


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
    check_recorded(model)
    _check_ready(model)
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / "config.json").is_file())):
        raise QuietformerError(f"{folder} exists and is not a model folder; choose another place")
    weights = (model.state_dict() if state_dict is None else state_dict).values()
    check_free(folder, sum({tensor.data_ptr(): tensor.nbytes for tensor in weights}.values()), "the model")
    try:
        with whole_folder(folder, stale=STALE) as draft, silenced_transformers():
            gathered: dict[str, Any] = {} if state_dict is None else {"state_dict": state_dict}
            save_with_settings(model, draft, **gathered)
            if not plain:
                _rename_weights(draft)
            copy_processor(model, processor, draft)
            copy_sentence_files(model, draft)
            if not plain and not (draft / "README.md").exists() and not (folder / "README.md").exists():
                (draft / "README.md").write_text(_readme(changes_of(model)), encoding="utf-8")
    except SafetensorError as error:
        raise QuietformerError(f"cannot write {folder}: {in_one_line(error)}; {free_in_words(folder)}") from error


def _is_plain(model: PreTrainedModel) -> bool:
    changed = any(True for _ in attention_cores(model)) or gained_norms(model) or gained_activations(model)
    return changes_of(model) == ModelChanges() and not changed


def check_recorded(model: PreTrainedModel) -> None:
    """What the section says must be what is in the model, or the folder would load as something else."""
    spec = changes_of(model)
    inside = {core.spec for _, core in attention_cores(model)}
    if inside != ({spec.attention} if spec.attention is not None else set()):
        raise QuietformerError(
            f"the attention was applied to a part of this {type(model).__name__} only, which a folder cannot say; "
            "apply it to the whole model, or save the part"
        )
    gained = {*_named_for(model, dict.fromkeys(spec.gained_norms, 0)), *_named_for(model, spec.gained_activations)}
    if {*gained_norms(model), *gained_activations(model)} != gained:
        raise QuietformerError(
            f"only a part of this {type(model).__name__} has a balanced residual stream, which a saved folder cannot record; "
            "balance the whole model, or save the part"
        )
    if {name for name, _ in prefixes(model)} != set(_named_for(model, spec.prefix.layers) if spec.prefix else ()):
        raise QuietformerError(
            f"the prefix was added to a part of this {type(model).__name__} only, which a folder cannot say; "
            "add it to the whole model, or save the part"
        )
    placed = quantizers(model)
    if set(placed) != set(spec.quantized.sites if spec.quantized else ()):
        raise QuietformerError(
            f"quantizers were put into a part of this {type(model).__name__} only, which a folder cannot say; "
            "quantize the whole model, or save the part"
        )


def _check_ready(model: PreTrainedModel) -> None:
    """What is in the model can be stored."""
    placed = quantizers(model)
    if any(hasattr(module, MIGRATION) for module in model.modules()):
        raise QuietformerError(
            f"this {type(model).__name__} divides inputs by smoothing scales, which a folder cannot record; export it, or save "
            "the model it was made from"
        )
    if waiting := [site for site, quantizer in placed.items() if not quantizer.calibrated]:
        raise QuietformerError(f"{waiting[0]} is not calibrated; call calibrate_ before saving")
    for _, core in attention_cores(model):
        step = getattr(core.normalizer, "step", None)
        if step is not None and int(step) == 0:
            warnings.warn(
                f"{core.spec.normalizer} is saved with its warm-up at step 0: gamma is still 0",
                QuietformerWarning,
                stacklevel=3,
            )
            break


def _readme(spec: ModelChanges) -> str:
    """Whoever finds the folder without us is told what it needs."""
    return (
        "# A Quietformer model\n\n"
        f"Attention: `{spec.attention.label if spec.attention else 'softmax'}`. {_precision(spec)}"
        "Plain transformers cannot load this folder. "
        "Install quietformer, then\n\n"
        "```python\nimport quietformer\nmodel = quietformer.load(folder)  # or AutoModel....from_pretrained(folder)\n```\n"
    )


def _precision(spec: ModelChanges) -> str:
    if spec.quantized is None:
        return ""
    return (
        f"Simulated {spec.quantized.spec.label} quantization at {len(spec.quantized.sites)} sites, calibrated; the weights are "
        "stored in fp32. `quietformer export` makes real INT8 of them. "
    )


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
    config["transformers_weights"] = NEEDS_IMPORT
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
    if (origin := origin_of(model)) is None:
        return
    for pattern in PROCESSOR_FILES:
        for path in origin.glob(pattern):
            if path.is_file() and not (draft / path.name).exists():
                shutil.copy2(path, draft / path.name)
