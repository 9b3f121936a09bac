"""A model of exactly what its weights hold: without the head or the pooler that they lack, and never with random numbers."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from transformers import AutoModel, PreTrainedModel

from quietformer.errors import QuietformerError, warn
from quietformer.models.check_folder import check_blocks, check_numbers

POOLER, NO_POOLER = "pooler", {"add_pooling_layer": False}
"""Its module, and how a class is told to leave it out."""


def whole_model(
    model_class: Any, pretrained_model_name_or_path: str, *, shown: str = "", **options: Any
) -> PreTrainedModel:
    """The model of this class; the base model if the weights have no head, and without a pooler if they have none.

    `shown` is what messages call the source, where the user knows it by another name.
    """
    source = pretrained_model_name_or_path
    shown = shown or source
    model, missing = _loaded(model_class, source, options)
    if missing and _lacks_head(model, missing):
        named, (model, missing) = (
            type(model).__name__,
            _without_pooler(*_loaded(AutoModel, source, options), source, options),
        )
        if not missing:
            warn(f"the config of {shown} names {named}, but its weights have no head; opened as {type(model).__name__}")
    else:
        model, missing = _without_pooler(model, missing, source, options)
    if missing:
        raise QuietformerError(
            f"{shown} lacks {len(missing)} tensors its config asks for, first {min(missing)!r}; they would be random numbers, "
            "so fetch the weights again, or correct config.json"
        )
    model.config.return_dict = True  # outputs are read by name
    return model


def _loaded(model_class: Any, source: str, options: dict[str, Any]) -> tuple[PreTrainedModel, set[str]]:
    model, info = model_class.from_pretrained(source, output_loading_info=True, ignore_mismatched_sizes=True, **options)
    for name, got, needed in sorted(info["mismatched_keys"])[:1]:  # transformers prints a table of them, and names none
        raise QuietformerError(
            f"{options.get('gguf_file', source)}: {name} has shape {tuple(got)} in the weights, the config asks for "
            f"{tuple(needed)}; correct config.json, or fetch the weights again"
        )
    unexpected = list(map(str, info["unexpected_keys"]))
    check_blocks(source, model, unexpected)
    if Path(source).is_dir():
        check_numbers(Path(source), model, unexpected)
    return model, set(map(str, info["missing_keys"]))


def _without_pooler(
    model: PreTrainedModel, missing: set[str], source: str, options: dict[str, Any]
) -> tuple[PreTrainedModel, set[str]]:
    """The model again, without its pooler if that is all the weights lack: sentence encoders are often saved so."""
    if not lacks_pooler(model, missing):
        return model, missing
    return _loaded(type(model), source, options | NO_POOLER)


def lacks_pooler(model: PreTrainedModel, missing: set[str]) -> bool:
    """Whether all that the weights lack is the whole pooler, which the model can do without."""
    poolers = {name for name in model.state_dict() if name.startswith(f"{POOLER}.")}
    takes = NO_POOLER.keys() <= inspect.signature(type(model).__init__).parameters.keys()
    return bool(missing) and missing == poolers and takes


def _lacks_head(model: PreTrainedModel, missing: set[str]) -> bool:
    """Whether the base model is complete, and of the head there is nothing; of half a head, the rest is lost."""
    base: Any = model.base_model
    if base is model:
        return False
    inside = {id(tensor) for tensor in base.state_dict(keep_vars=True).values()}
    head = {name for name, tensor in model.state_dict(keep_vars=True).items() if id(tensor) not in inside}
    others = missing - head
    return bool(head) and missing >= head and all(f".{POOLER}." in name for name in others)
