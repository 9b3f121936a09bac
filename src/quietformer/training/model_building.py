"""The model a recipe describes, as it is before the first step."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from quietformer.architectures.layout import find_blocks
from quietformer.architectures.patch_norm import add_patch_norm_
from quietformer.attention.inject import apply_attention_
from quietformer.config.attention import AttentionSpec
from quietformer.config.model_changes import ModelChanges
from quietformer.config.recipe import Recipe
from quietformer.config.recorded_changes import METHOD, RecordedChanges
from quietformer.errors import QuietformerError, in_one_line
from quietformer.models.apply_changes import apply_changes_
from quietformer.models.check_folder import CONFIG_REMEDY, check_finite, check_folder, check_numbers
from quietformer.models.open_any import resolve
from quietformer.models.silence_transformers import silenced_transformers
from quietformer.results import numbers
from quietformer.training.model_config import CLASSES, make_config


def build_model(
    recipe: Recipe,
    *,
    vocabulary: int | None = None,
    labels: Sequence[str] | None = None,
    special_tokens: Mapping[str, int] | None = None,
) -> PreTrainedModel:
    """The model with its attention, a function of the recipe alone; in float32, which is what optimizers need.

    Under `torch.device("meta")` nothing is allocated, fetched or read but a config: a pretrained model then has its shape.
    """
    config = make_config(recipe, vocabulary=vocabulary, labels=labels, special_tokens=special_tokens)
    if not recipe.model.pretrained or torch.get_default_device().type == "meta":
        return _from_nothing(recipe, config)
    inside = _described(config)
    if inside.quantized is not None:
        raise QuietformerError(f"{recipe.model.pretrained} is quantized; train the model it was made from")
    torch.manual_seed(recipe.seed)
    model = _load(recipe.model.pretrained, config, recipe.task)
    _finish_(model, recipe, inside)
    return model


def build_shape(
    recipe: Recipe, *, layers: int | None = None, vocabulary: int | None = None, labels: Sequence[str] | None = None
) -> PreTrainedModel:
    """A model of the recipe's sizes with no pretrained weights, whole or with a few of its layers, to measure with."""
    with torch.device("meta"):  # where a pretrained model's config is only read if it is on this machine
        config = make_config(recipe, vocabulary=vocabulary, labels=labels)
    if layers is not None:
        if not isinstance(getattr(config, "num_hidden_layers", None), int):
            raise QuietformerError(f"a {config.model_type} config has no num_hidden_layers to shrink")
        config.num_hidden_layers = layers
        if isinstance(kinds := getattr(config, "layer_types", None), list):
            config.layer_types = kinds[:layers]
    return _from_nothing(recipe, config)


def _from_nothing(recipe: Recipe, config: PreTrainedConfig) -> PreTrainedModel:
    inside = _taken_out_(config)
    if torch.get_default_device().type != "meta":
        _check_memory(recipe, config)
    torch.manual_seed(recipe.seed)
    try:
        with silenced_transformers():
            model: PreTrainedModel = CLASSES[recipe.task].from_config(config, dtype=torch.float32)
    except Exception as error:  # sizes that do not divide, ids past the vocabulary
        raise QuietformerError(f"cannot build this {config.model_type} model: {in_one_line(error)}") from error
    if empty := next((name for name, parameter in model.named_parameters() if not parameter.numel()), None):
        raise QuietformerError(
            f"{empty} of this {config.model_type} model would be empty; correct the sizes in model.config"
        )
    # Ranges and units belong to weights, of which this model has none yet.
    apply_changes_(model, inside.model_copy(update={"quantized": None, "gained_norms": (), "gained_activations": {}}))
    _finish_(model, recipe, inside)
    return model


def _check_memory(recipe: Recipe, config: PreTrainedConfig) -> None:
    """Whether the weights fit into this machine, asked of a model without any."""
    try:
        with silenced_transformers(), torch.device("meta"):
            model = CLASSES[recipe.task].from_config(copy.deepcopy(config), dtype=torch.float32)
    except Exception as error:  # sizes that do not divide, ids past the vocabulary
        raise QuietformerError(f"cannot build this {config.model_type} model: {in_one_line(error)}") from error
    needed, there = 4 * sum(parameter.numel() for parameter in model.parameters()), memory()
    if there is not None and needed > there:
        raise QuietformerError(
            f"the weights of this {config.model_type} model take {numbers.size(needed)} and the machine has "
            f"{numbers.size(there)} of memory; make model.config smaller"
        )


def memory() -> int | None:
    """Bytes of memory of this machine, where the system says."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _finish_(model: PreTrainedModel, recipe: Recipe, inside: ModelChanges) -> None:
    """What the recipe adds; plain softmax stays transformers' own attention, which is faster, or what came with the model."""
    if recipe.patch_norm and inside.patch_norm is None:
        add_patch_norm_(model)
    if recipe.attention != AttentionSpec():
        apply_attention_(model, recipe.attention)


def _described(config: PreTrainedConfig) -> ModelChanges:
    """What Quietformer has put into the pretrained model."""
    section = getattr(config, "quantization_config", None)
    if section is None:
        return ModelChanges()
    if isinstance(section, dict):
        if section.get("quant_method") != METHOD:
            raise QuietformerError(f"{config.name_or_path} is quantized by another method; train the original")
        section = RecordedChanges.from_dict(section)
    spec: ModelChanges = section.spec
    return spec


def _taken_out_(config: PreTrainedConfig) -> ModelChanges:
    """The same, taken out of the config, to be put into a model that is built rather than loaded."""
    spec = _described(config)
    for name in ("quantization_config", "attn_implementation"):
        vars(config).pop(name, None)
    if config._attn_implementation == METHOD:
        config._attn_implementation = None
    return spec


def _load(name: str, config: PreTrainedConfig, task: str) -> PreTrainedModel:
    """The weights of the source in the class of the task; what the source lacks must be the head and nothing else."""
    source = resolve(name)
    if (folder := Path(source)).is_dir():
        check_folder(folder)
    try:
        with silenced_transformers():
            model, info = CLASSES[task].from_pretrained(
                source,
                config=config,
                dtype=torch.float32,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=Path(source).is_dir(),
                ignore_mismatched_sizes=True,  # a head for other labels is made anew; whatever else differs is refused
                output_loading_info=True,
            )
    except QuietformerError as error:
        raise QuietformerError(f"{name}: {error}") from None
    except Exception as error:
        raise QuietformerError(f"cannot load {name}: {in_one_line(error)}; {CONFIG_REMEDY}") from error
    mismatched = {str(key[0] if isinstance(key, tuple) else key) for key in info["mismatched_keys"]}
    if strange := sorted(key for key in {*map(str, info["missing_keys"]), *mismatched} if not _of_head(model, key)):
        raise QuietformerError(
            f"{name} lacks {len(strange)} tensors below the head in these shapes, first {strange[0]!r}, which would be "
            "random numbers; correct model.config"
        )
    if left := sorted(_of_blocks(model, map(str, info["unexpected_keys"]))):
        raise QuietformerError(
            f"{name} has {len(left)} tensors that its config has no place for, first {left[0]!r}; correct model.config"
        )
    if folder.is_dir():
        check_numbers(folder, model, map(str, info["unexpected_keys"]))
    check_finite(model)
    loaded: PreTrainedModel = model
    return loaded


def _of_head(model: Any, name: str) -> bool:
    """Outside the base model, or the pooler, which masked models do without and classifiers read."""
    prefix = f"{model.base_model_prefix}."
    return model.base_model is not model and (not name.startswith(prefix) or name.startswith(f"{prefix}pooler."))


def _of_blocks(model: PreTrainedModel, names: Iterable[str]) -> list[str]:
    """Those that belong to a block; the file may name them from the base model on."""
    holders = {block.name.rpartition(".")[0] for block in find_blocks(model)}

    def inside(name: str) -> bool:
        parts = name.split(".")
        number = next((i for i, part in enumerate(parts) if part.isdigit()), 0)
        path = ".".join(parts[:number])
        return bool(path) and any(f".{holder}".endswith(f".{path}") or path == holder for holder in holders)

    return [name for name in names if inside(name)]
