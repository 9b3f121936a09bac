"""What a sentence-transformers folder says about embeddings (pooling, length, prompts), and embeddings made as it says.

Legend: B sequences, T tokens, D hidden dimensions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from quietformer.config.spec_base import nearest
from quietformer.errors import CheckpointError
from quietformer.files import read_json

MODULES, PROMPTS, POOLING = "modules.json", "config_sentence_transformers.json", "1_Pooling/config.json"
LENGTHS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Where the first module keeps its settings; folders of early versions name the file after the architecture."""

KNOWN_KIND = "SentenceTransformer"
"""The `model_type` that is understood, and meant where none is named."""

PoolingMode = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]
FLAGS: dict[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""One flag for each mode, as most folders have them; in the order in which several are put side by side."""


@dataclass(frozen=True, kw_only=True)
class SentenceSettings:
    """How a sentence encoder makes one embedding of a text."""

    pooling: tuple[PoolingMode, ...] = ("mean",)
    """Several are put side by side; none means that the folder has no pooling module."""
    normalize: bool = False
    max_seq_length: int | None = None
    do_lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    similarity: Similarity | None = None
    """How embeddings are compared; None leaves it to sentence-transformers, which takes the cosine."""
    include_prompt: bool = True
    """Whether the tokens of a prompt are pooled too."""
    transformer: str = ""
    """The subfolder with config.json and weights; empty for the folder itself."""
    other_modules: tuple[str, ...] = ()
    """Modules past pooling that nothing here computes, such as Dense; embeddings without them are not the model's."""


def read_sentence_settings(folder: Path) -> SentenceSettings | None:
    """The settings of a sentence-transformers folder; None for any other folder, a cross-encoder's included."""
    if not (folder / MODULES).is_file() or unknown_kind(folder):
        return None
    told = _object(folder / PROMPTS) if (folder / PROMPTS).is_file() else {}
    modules = modules_of(folder)
    kinds = [kind for kind, _ in modules]
    pooling = next((path for kind, path in modules if kind == "Pooling"), None)
    modes, include_prompt = ((), True) if pooling is None else _pooling(folder / pooling / "config.json")
    transformer = modules[0][1]
    lengths = next((path for name in LENGTHS if (path := folder / transformer / name).is_file()), folder / LENGTHS[0])
    first = _object(lengths) if lengths.is_file() else {}
    length = _typed(lengths, first, "max_seq_length", int, None)
    if length is not None and length < 1:
        raise CheckpointError(f"{lengths}: max_seq_length must be at least 1, got {length}; correct the file")
    prompts, default = _prompts(folder / PROMPTS, told)
    return SentenceSettings(
        pooling=modes,
        normalize="Normalize" in kinds,
        max_seq_length=length,
        do_lower_case=_typed(lengths, first, "do_lower_case", bool, False),
        prompts=prompts,
        default_prompt_name=default,
        similarity=_similarity(folder / PROMPTS, told),
        include_prompt=include_prompt,
        transformer=transformer,
        other_modules=tuple(kind for kind in kinds[1:] if kind not in ("Pooling", "Normalize")),
    )


def unknown_kind(folder: Path) -> str:
    """What modules.json describes that is no sentence encoder as it is understood here; empty if it is one, or is not there.

    It is a model of several vectors a text, a router between two encoders, or code of the folder's own.
    """
    if not (folder / MODULES).is_file():
        return ""
    told = _object(folder / PROMPTS) if (folder / PROMPTS).is_file() else {}
    kind = told.get("model_type", KNOWN_KIND)
    if kind != KNOWN_KIND:
        return str(kind)
    first = modules_of(folder)[0][0]
    return "" if first == "Transformer" else first


def _prompts(path: Path, told: dict[str, Any]) -> tuple[dict[str, str], str | None]:
    """Prompts by name, without those left open, and which of them is meant where none is named."""
    prompts = {name: text for name, text in _typed(path, told, "prompts", dict, {}).items() if text is not None}
    if not all(isinstance(text, str) for text in prompts.values()):
        raise CheckpointError(f"{path}: prompts must be text by name; correct the file")
    default = _typed(path, told, "default_prompt_name", str, None)
    if default is not None and default not in prompts:
        raise CheckpointError(f"{path}: default_prompt_name {default!r} is no prompt of it{nearest(default, prompts)}")
    return prompts, default


def _similarity(path: Path, told: dict[str, Any]) -> Similarity | None:
    """As sentence-transformers, which leaves names aside that it does not know."""
    named = _typed(path, told, "similarity_fn_name", str, None)
    return next((one for one in get_args(Similarity) if one == named), None)


def modules_of(folder: Path) -> list[tuple[str, str]]:
    """The kind and the subfolder of every module, in order; a module of another package keeps its whole name."""
    path = folder / MODULES
    listed = read_json(path, f"{path} is not there", CheckpointError)
    if not isinstance(listed, list) or not listed or not all(isinstance(one, dict) for one in listed):
        raise CheckpointError(f"{path} must be a list of modules; restore it, or delete it to use plain mean pooling")
    found = []
    for one in listed:
        name, place = one.get("type"), one.get("path", "")
        if not isinstance(name, str) or not isinstance(place, str):
            raise CheckpointError(f"{path}: a module needs a type and a path, got {json.dumps(one)[:100]}")
        if PurePosixPath(place).is_absolute() or ".." in PurePosixPath(place.replace("\\", "/")).parts:
            raise CheckpointError(f"{path}: {place!r} leads out of the folder; correct the file")
        known = name.startswith(("sentence_transformers.", "quietformer."))
        kind = name.rpartition(".")[2] if known else name
        found.append(("Transformer" if kind == "OnnxModel" else kind, place))
    return found


def _pooling(path: Path) -> tuple[tuple[PoolingMode, ...], bool]:
    """The modes, and whether the tokens of a prompt are pooled too."""
    told = _object(path)
    named = told.get("pooling_mode")
    modes: list[Any] = named if isinstance(named, list) and named else [named]
    if named is None:
        modes = [mode for flag, mode in FLAGS.items() if told.get(flag)] or ["mean"]
    for mode in modes:
        if mode not in get_args(PoolingMode):
            raise CheckpointError(f"{path}: unknown pooling_mode {mode!r}{nearest(str(mode), get_args(PoolingMode))}")
    return tuple(modes), _typed(path, told, "include_prompt", bool, True)


def _object(path: Path) -> dict[str, Any]:
    told = read_json(path, f"{path} is not there, and {MODULES} asks for it; restore the file", CheckpointError)
    if not isinstance(told, dict):
        raise CheckpointError(f"{path} must be a JSON object; restore the file")
    return told


def _typed(path: Path, told: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    """A field, of its type; null and a field that is not there are the default."""
    value = told.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise CheckpointError(f"{path}: {name} must be {kind.__name__}, got {value!r}; correct the file")
    return value


def sentence_embedding(states_BTD: Tensor, mask_BT: Tensor, settings: SentenceSettings, skipped: int = 0) -> Tensor:
    """One embedding a sequence, pooled and normalized as the settings say; padding counts for nothing.

    So many tokens at the beginning are `skipped`: those of a prompt that is not to be pooled.
    """
    pooled = torch.cat([pooled_by(mode, states_BTD, mask_BT, skipped) for mode in settings.pooling], dim=-1)
    return functional.normalize(pooled, dim=-1) if settings.normalize else pooled


def pooled_by(mode: PoolingMode, states_BTD: Tensor, mask_BT: Tensor, skipped: int = 0) -> Tensor:
    """One vector a sequence; the mask says which tokens are of text, with padding on either side."""
    real_BT = mask_BT.to(states_BTD.device).bool()
    places_BT = real_BT.long().cumsum(1)  # from 1, prompt included
    if skipped:
        real_BT = real_BT & (places_BT > skipped)
    tokens_BT = real_BT.long()
    if mode in ("cls", "lasttoken"):
        # The first token of text, or the last; of a row without any the first.
        place_B = tokens_BT.argmax(1) if mode == "cls" else (places_BT * tokens_BT).argmax(1)
        return states_BTD.gather(1, place_B[:, None, None].expand(-1, 1, states_BTD.shape[-1])).squeeze(1)
    if mode == "max":
        return states_BTD.masked_fill(~real_BT[..., None], float("-inf")).amax(1)
    # Padding may hold anything, NaN included, and NaN times zero is NaN.
    states_BTD = states_BTD.masked_fill(~real_BT[..., None], 0.0)
    weights_BT = tokens_BT.to(states_BTD.dtype)
    if mode == "weightedmean":
        weights_BT = (places_BT * tokens_BT).to(states_BTD.dtype)
    total_B1 = weights_BT.sum(1, keepdim=True).clamp(min=1e-9)
    if mode == "mean_sqrt_len_tokens":
        total_B1 = total_B1.sqrt()
    return (states_BTD * weights_BT[..., None]).sum(1) / total_B1
