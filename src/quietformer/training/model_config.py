"""The transformers config of a recipe: from nothing or of a pretrained model, made to fit the data, typos refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from quietformer.config.recipe import Recipe
from quietformer.config.spec_base import nearest
from quietformer.errors import QuietformerError, in_one_line
from quietformer.models.check_folder import check_counts
from quietformer.models.hub_names import check_hub_name
from quietformer.models.open_any import BUILT_IN, resolve
from quietformer.models.silence_transformers import silenced_transformers

CLASSES: dict[str, Any] = {
    "masked": AutoModelForMaskedLM,
    "causal": AutoModelForCausalLM,
    "pairs": AutoModelForSequenceClassification,
    "images": AutoModelForImageClassification,
}

BESIDE = {"num_labels", "attn_implementation"}
"""What every config takes besides its fields."""


def make_config(
    recipe: Recipe,
    *,
    vocabulary: int | None = None,
    labels: Sequence[str] | None = None,
    special_tokens: Mapping[str, int] | None = None,
) -> PreTrainedConfig:
    """The config the model is built with; `vocabulary` is how many tokens the tokenizer has."""
    fields = recipe.model.config
    config = pretrained_config(recipe) if recipe.model.pretrained else config_from(fields)
    if type(config) not in CLASSES[recipe.task]._model_mapping:
        raise QuietformerError(
            f"transformers has no {config.model_type!r} model for task {recipe.task!r}; change either"
        )
    own = set(fields) if not recipe.model.pretrained else set(config.to_dict())
    own = _named(config, own)
    if recipe.task == "causal" and getattr(config, "is_decoder", None) is False:
        raise QuietformerError(
            f"task 'causal' needs a decoder, and this {config.model_type} model looks ahead; train it with task 'masked', choose "
            "a decoder (gpt2, opt, llama), or set model.config.is_decoder to true"
        )
    _set_dropout_(config, recipe.model.dropout)
    _set_init_std_(config, recipe.model.init_std)
    _set_labels_(config, labels, given="num_labels" in fields or "id2label" in fields)
    _set_vocabulary_(config, vocabulary, given="vocab_size" in own)
    for name, token in (special_tokens or {}).items():
        # A pretrained config has every field; what it leaves empty may be filled.
        if hasattr(config, name) and (name not in own or (recipe.model.pretrained and getattr(config, name) is None)):
            setattr(config, name, token)
    if recipe.task != "images":
        _fit_positions_(config, recipe, given="max_position_embeddings" in own)
    return config


def config_from(fields: Mapping[str, Any]) -> PreTrainedConfig:
    """A config by its fields; transformers keeps what it does not know, which is how typos train the wrong model."""
    model_type = fields["model_type"]
    if model_type not in CONFIG_MAPPING:
        raise QuietformerError(f"unknown model_type {model_type!r}{_near(str(model_type), CONFIG_MAPPING.keys())}")
    default = AutoConfig.for_model(model_type)
    check_counts(fields, "model.config")
    try:
        config: PreTrainedConfig = AutoConfig.for_model(**fields)
    except Exception as error:  # whatever a config's own checks raise
        raise QuietformerError(f"model.config: {in_one_line(error)}") from error
    # Fields of older versions (rope_theta) are converted and gone; what stays as it is was not understood.
    _check_known(default, fields, vars(config))
    return config


def pretrained_config(recipe: Recipe) -> PreTrainedConfig:
    """The config of the pretrained model with the recipe's fields over it.

    On the meta device nothing is fetched: a hub model not on this machine is taken as the recipe's config describes it.
    """
    source, fields = resolve(name := recipe.model.pretrained), dict(recipe.model.config)
    planning = torch.get_default_device().type == "meta"
    folder = Path(source)
    if not folder.is_dir() and (folder.exists() or source.count("/") > 1 or source.startswith((".", "/", "~"))):
        raise QuietformerError(f"{name} is not a model folder; model.pretrained takes a folder or a hub id")
    check_counts(fields, "model.config")
    if not planning and not folder.is_dir():
        check_hub_name(name, tuple(BUILT_IN))
    try:
        with silenced_transformers():
            default = AutoConfig.from_pretrained(
                source, local_files_only=planning or folder.is_dir(), trust_remote_code=False
            )
            model_type = fields.pop("model_type", default.model_type)
            config = AutoConfig.from_pretrained(
                source, local_files_only=planning or folder.is_dir(), trust_remote_code=False, **fields
            )
    except Exception as error:
        if planning and not folder.is_dir():
            if "model_type" in fields:
                return config_from(fields)
            raise QuietformerError(
                f"the config of {name} is not on this machine; describe it in model.config (model_type and sizes) to plan "
                "without it, or fetch it first"
            ) from error
        raise QuietformerError(f"cannot read the config of {name}: {in_one_line(error)}") from error
    if model_type != default.model_type:
        raise QuietformerError(f"{name} is a {default.model_type!r}, and model.config says model_type: {model_type}")
    _check_known(default, fields, fields)
    result: PreTrainedConfig = config
    return result


def _check_known(default: PreTrainedConfig, fields: Mapping[str, Any], kept: Mapping[str, Any]) -> None:
    known = {*default.to_dict(), *vars(default), *default.attribute_map, *BESIDE}
    for name in fields:
        if name not in known and name in kept:
            choices = sorted(name for name in known if not name.startswith("_"))
            raise QuietformerError(f"model.config: a {default.model_type} config has no {name!r}{_near(name, choices)}")


def _near(name: str, choices: Any) -> str:
    """The nearest choice, without reading out hundreds of them."""
    hint = nearest(name, choices)
    return hint if len(hint) < 100 else "; see the transformers documentation for its names"


def _named(config: PreTrainedConfig, names: set[str]) -> set[str]:
    """Names with their synonyms: GPT-2 calls max_position_embeddings n_positions."""
    return names | {name for name, own in config.attribute_map.items() if own in names}


def _set_dropout_(config: PreTrainedConfig, rate: float | None) -> None:
    for name, value in config.to_dict().items():
        # `layerdrop` skips layers, which is something else; None (classifier_dropout) follows the others.
        if rate is not None and ("dropout" in name or name.endswith("pdrop")) and isinstance(value, (int, float)):
            setattr(config, name, float(rate))


def _set_init_std_(config: PreTrainedConfig, std: float | None) -> None:
    if std is None:
        return
    name = next((name for name in ("initializer_range", "init_std") if hasattr(config, name)), None)
    if name is None:
        raise QuietformerError(f"a {config.model_type} config has no initializer_range; leave model.init_std out")
    setattr(config, name, std)


def _set_labels_(config: PreTrainedConfig, labels: Sequence[str] | None, given: bool) -> None:
    if labels is None:
        return
    if given and config.num_labels != len(labels):
        raise QuietformerError(
            f"the data has {len(labels)} labels and model.config says {config.num_labels}; leave num_labels out"
        )
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: index for index, label in enumerate(labels)}


def _set_vocabulary_(config: PreTrainedConfig, vocabulary: int | None, given: bool) -> None:
    if vocabulary is None or not hasattr(config, "vocab_size"):
        return
    if not given:
        config.vocab_size = vocabulary
    elif config.vocab_size < vocabulary:
        raise QuietformerError(
            f"the tokenizer gives ids up to {vocabulary - 1}, past the model's vocabulary of {config.vocab_size}; "
            "raise model.config.vocab_size or choose the model's own tokenizer"
        )


def _fit_positions_(config: PreTrainedConfig, recipe: Recipe, given: bool) -> None:
    """As many learned positions as the sequences have: more would stay as they were made, never trained."""
    length, most = recipe.data.length, getattr(config, "max_position_embeddings", None)
    if not isinstance(most, int):
        return
    learned = not hasattr(config, "rope_parameters")
    offset = _first_position(config, recipe.task) if learned else 0
    if not given:
        config.max_position_embeddings = length + offset if learned else max(length, most)
    elif learned and most < length + offset:
        raise QuietformerError(
            f"sequences of {length} tokens do not fit the model's {most - offset} positions; "
            f"set data.length to at most {most - offset}"
        )


def _first_position(config: PreTrainedConfig, task: str) -> int:
    """RoBERTa and its kin count positions from after the padding token; the table then has a padding row."""
    with torch.device("meta"):
        try:
            model = CLASSES[task].from_config(config)
        except Exception as error:
            raise QuietformerError(f"cannot build this {config.model_type} model: {in_one_line(error)}") from error
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and "position" in name and module.padding_idx is not None:
            return module.padding_idx + 1
    return 0
