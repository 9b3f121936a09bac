"""Putting everything a saved model records into a freshly built one."""

from __future__ import annotations

from typing import Any

from safetensors import safe_open
from transformers import PreTrainedModel

from quietformer.architectures.patch_norm import NORM, add_patch_norm_
from quietformer.attention.find_layers import CORE
from quietformer.attention.inject import apply_attention_
from quietformer.config.model_changes import ModelChanges
from quietformer.errors import CheckpointError
from quietformer.quant.insertion import HOLDER, place_
from quietformer.transforms.gained_modules import GAIN, gain_
from quietformer.transforms.prefix import place_prefix_


def apply_changes_(model: PreTrainedModel, spec: ModelChanges, weight_files: list[str] | None = None) -> None:
    """Everything a spec describes, into a model that has none of it; its tensors must be in the files to come."""
    if spec.patch_norm is not None:
        add_patch_norm_(model, spec.patch_norm)
    if spec.gained_norms or spec.gained_activations:
        norms = _named_for(model, dict.fromkeys(spec.gained_norms, 0))
        gain_(model, norms, _named_for(model, spec.gained_activations))
    if spec.attention is not None:
        apply_attention_(model, spec.attention)
    if spec.prefix is not None:
        place_prefix_(model, spec.prefix.model_copy(update={"layers": _named_for(model, spec.prefix.layers)}))
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
