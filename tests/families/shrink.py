"""Shrink any transformers configuration class to toy size, guided by field names.

The shrunk values are passed to the configuration's constructor instead of being set afterwards, so that everything a
configuration derives in its own post-init step (layer kinds, head sizes, rope tables) is derived from the small sizes.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from typing import Any

from transformers import PreTrainedConfig

VOCAB = 128
HIDDEN = 32
LAYERS = 2
# Random text is drawn from [TEXT_LOW, TEXT_HIGH); special tokens live outside of that range.
TEXT_LOW, TEXT_HIGH = 10, 90
FIRST_SPECIAL = 100

# First match wins. The value is a ceiling: a field is never made larger than its default; -1 leaves it alone.
INT_RULES: list[tuple[str, int]] = [
    (
        r"chunk_size_feed_forward|num_channels|in_chans|pretraining_tp|.*_loss_coefficient|.*_cost|.*_(stride|padding)",
        -1,
    ),
    (
        r"(.*_)?vocab_size(_per_layer_input)?|num_embeddings|codebook_size|ngram_vocab_size_base|.*_hash_byte_group_vocab",
        VOCAB,
    ),
    (r"(.*_)?(num_key_value_heads|num_kv_heads|key_value_heads|indexer_kv_heads)", 2),
    (r"mamba_n_heads|mamba_num_heads|n_mamba_heads", 8),
    (r"(.*_)?(n_heads?|num_heads|attention_heads|num_attention_heads|attn_heads)", 4),
    (r"linear_num_(key_|value_)?heads", 4),
    (r"num_experts_per_tok|moe_topk|moe_top_k|moe_k|top_k_experts|num_selected_experts", 2),
    (r"(.*_)?(num_experts|num_local_experts|n_routed_experts|zero_expert_num)", 4),
    (r"(n|num)_shared_experts|moe_num_shared_experts", 1),
    (r"n_group|topk_group", 1),
    (r"first_k_dense_replace|num_dense_layers", 1),
    (r"(q|kv|o)_lora_rank", 16),
    (r"qk_rope_head_dim", 4),
    (r"(.*_)?head_dim|dim_head|mamba_d_head|d_kv|v_head_dim|qk_nope_head_dim|kv_channels|query_pre_attn_scalar", 8),
    (r"hidden_size_per_layer_input", 8),
    (r"(.*_)?(num_hidden_layers|num_layers|n_layers?|encoder_layers|decoder_layers|depth|num_blocks)|layers", LAYERS),
    (
        r"(.*_)?(intermediate_size|intermediate_dim|ffn_dim|d_ff|dff|mlp_dim|ffn_hidden_size|n_inner|feed_forward_hidden_size"
        r"|mlp_hidden_size|share_expert_dim|dim_feedforward|feedforward_dim)",
        64,
    ),
    (
        r"(.*_)?(hidden_size|hidden_dim|d_model|n_embd|embed_dim|embedding_size|projection_dim|embedding_dim|lru_width"
        r"|hidden_size_global|projector_hidden_size|output_dim|input_dim|proj_dim|projection_size|hidden_sizes|dim"
        r"|emb_dim|project_dim|codevector_dim|codebook_dim|projector_(in|out)put_dim|image_text_hidden_size|head_size)",
        HIDDEN,
    ),
    (r"(.*_)?(max_position_embeddings|max_source_positions|max_target_positions|n_positions|max_seq_len|seq_len)", 128),
    (
        r"(.*_)?(sliding_window|sliding_window_size|attention_chunk_size|attention_window_size|local_attention"
        r"|keep_window_size)",
        4,
    ),
    (r"image_size|pretrain_image_size|img_size|crop_size", 32),
    (r"patch_size", 8),
    (r"num_mel_bins|n_mel_bins|mel_dim", 16),
    (r"num_conv_pos_embedding_groups", 2),
    (r"num_conv_pos_embeddings|conv_depthwise_kernel_size", 5),
    (r"num_frames|frames_per_clip", 4),
    (
        r"num_queries|num_denoising|num_query_tokens|two_stage_num_proposals|num_detection_tokens|.*num_latents|"
        r"latent_query_num|.*_n_latents",
        8,
    ),
    (r"num_filters", 8),
    (r"upsample_groups", HIDDEN),
    (r"(.*_)?(conv_channels|out_channels?|output_channels|base_channels|feature_size)", HIDDEN),
    (r"mamba_d_state|ssm_state_size|mamba_dt_rank", 8),
    (r"(mamba_)?chunk_size", 8),
]
_COMPILED = [(re.compile(pattern), value) for pattern, value in INT_RULES]
_TOKEN_FIELD = re.compile(r".*(_token_id|_token_index|_(bos|eos|pad|start|end|newline|patch|nothink|think)_id)")
_WIDTH_LIST = re.compile(r".*(hidden_sizes?|embed_dims?|channels?|channel_list|embed_dim_per_stage|conv_dim|tdnn_dim)")
_DEPTH_LIST = re.compile(r"depths|blocks_per_stage|stage_num_blocks|num_block_repeats")
_HEAD_LIST = re.compile(r"num_(attention_)?heads(_per_stage)?|num_groups")


# Parts that are written out: their width lists depend on each other, or they need a package that may be missing.
_RESNET = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 16, 32, 64],
    "depths": [1, 1, 1, 1],
    "layer_type": "basic",
}
_HGNET = {
    "model_type": "hgnet_v2",
    "embedding_size": 8,
    "hidden_sizes": [8, 16, 32, 64],
    "depths": [1, 1, 1, 1],
    "stem_channels": [3, 8, 8],
    "stage_in_channels": [8, 8, 16, 32],
    "stage_mid_channels": [8, 8, 8, 8],
    "stage_out_channels": [8, 16, 32, 64],
    "stage_num_blocks": [1, 1, 1, 1],
    "stage_numb_of_layers": [1, 1, 1, 1],
}
_VISION_TOWER = {
    "model_type": "siglip_vision_model",
    "hidden_size": HIDDEN,
    "intermediate_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
WRITTEN_OUT: dict[str, dict[str, Any]] = {
    "timm_backbone": _RESNET,
    "resnet": _RESNET,
    "hgnet_v2": _HGNET,
    "timm_wrapper": _VISION_TOWER,
}


# Sizes that some configurations leave open and their models nevertheless need.
UNSET: dict[str, int] = {
    "num_experts_per_tok": 2,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "head_dim": 8,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
}


_COMMON_FIELDS = {field.name for field in dataclasses.fields(PreTrainedConfig)}


class TokenIds:
    """Hands out distinct special token ids, shared by all parts of one composite configuration."""

    def __init__(self) -> None:
        self._next = FIRST_SPECIAL
        self._seen: dict[int, int] = {}

    def map(self, original: int) -> int:
        if original < TEXT_LOW:
            return original
        if original not in self._seen:
            # Wrap rather than leave the vocabulary; only configurations with dozens of special tokens get here.
            self._seen[original] = FIRST_SPECIAL + (self._next - FIRST_SPECIAL) % (VOCAB - FIRST_SPECIAL)
            self._next += 1
        return self._seen[original]


def _class_default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None


def _cover_kinds(kinds: list[Any], count: int) -> list[Any]:
    """Pick `count` per-layer entries so that every kind that occurs in the full-size model occurs here."""
    distinct = list(dict.fromkeys(kinds))
    picked = distinct[:count]
    while len(picked) < count:
        picked.append(picked[-1])
    return picked


def _int_ceiling(name: str) -> int | None:
    for pattern, ceiling in _COMPILED:
        if pattern.fullmatch(name):
            return None if ceiling < 0 else ceiling
    return None


def _shrink_list(name: str, value: list[Any] | tuple[Any, ...], full_layers: int | None, layers: int) -> Any:
    kind = type(value)
    if full_layers is not None and len(value) == full_layers and full_layers > layers:
        return kind(_cover_kinds(list(value), layers)) if isinstance(value[0], str) else kind(value[:layers])
    if not value or not all(isinstance(item, int) and not isinstance(item, bool) for item in value):
        return None
    if name in ("image_size", "pretrain_image_size"):
        return kind([min(item, 32) for item in value])
    if name == "patch_size" and len(value) == 2:
        return kind([min(item, 8) for item in value])
    if _DEPTH_LIST.fullmatch(name):
        return kind([1] * len(value))
    if _HEAD_LIST.fullmatch(name):
        return kind([min(2**stage, 4) for stage in range(len(value))])
    if _WIDTH_LIST.fullmatch(name):
        ratio = max(1, max(value) // 64)
        # Entries as small as an image's channel count are inputs of a stem, not widths.
        return kind([item if item <= 4 else max(8, item // ratio // 8 * 8) for item in value])
    return None


def shrunk_kwargs(
    config_class: type[PreTrainedConfig],
    tokens: TokenIds,
    default: PreTrainedConfig | None = None,
    grouped: bool = True,
) -> dict[str, Any]:
    """Constructor arguments that turn `config_class` into its toy-size version.

    With `grouped` the model gets fewer key-value heads than heads; some architectures have the field for the former but
    do not allow that.
    """
    nested = default is not None
    if default is None:
        try:
            default = config_class()
        except Exception:
            default = None  # a few classes have defaults that fail their own validation
    fields = {field.name: field for field in dataclasses.fields(config_class)}

    def value_of(name: str) -> Any:
        if default is not None and name in default.__dict__:
            return default.__dict__[name]
        return _class_default(fields[name]) if name in fields else None

    # The default of a nested configuration may differ from its class's defaults, which the constructor starts from.
    result: dict[str, Any] = {}
    full_layers = next(
        (
            value_of(name)
            for name in ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "depth")
            if name in fields and isinstance(value_of(name), int)
        ),
        None,
    )
    layers = LAYERS
    for name in ("layer_types", "layers_block_type", "block_types"):
        kinds = value_of(name)
        if isinstance(kinds, (list, tuple)) and kinds:
            layers = max(layers, len(set(kinds)))

    stages = value_of("_out_indices")
    if isinstance(stages, (list, tuple)):
        if full_layers is not None:  # one block per stage: have as many blocks as there are outputs
            layers = max(layers, len(stages))
            result["out_indices"] = list(range(layers - len(stages) + 1, layers + 1))
        else:
            result["out_indices"] = list(stages)

    for name in fields:
        value = value_of(name)
        if isinstance(value, PreTrainedConfig) and value.model_type in WRITTEN_OUT:
            result[name] = dict(WRITTEN_OUT[value.model_type])
            if value.__dict__.get("_out_indices"):
                result[name]["out_indices"] = list(value.__dict__["_out_indices"])
        elif isinstance(value, PreTrainedConfig):
            result[name] = {"model_type": value.model_type, **shrunk_kwargs(type(value), tokens, value, grouped)}
        elif name == "use_cache":
            result[name] = False
        elif value is None and name in UNSET and ("num_attention_heads" in fields or "head" not in name):
            result[name] = UNSET[name]
        elif name == "rope_parameters" and isinstance(value, dict) and "mrope_section" in value:
            # The sections split the rotary frequencies, of which a head of size 8 has four.
            result[name] = {**value, "mrope_section": [2, 1, 1]}
        elif name in ("id2label", "label2id") or name in _COMMON_FIELDS:
            continue
        elif isinstance(value, (bool, str, float)):
            if nested and value != _class_default(fields[name]):
                result[name] = value
        elif _TOKEN_FIELD.fullmatch(name) and isinstance(value, int):
            result[name] = tokens.map(value)
        elif _TOKEN_FIELD.fullmatch(name) and isinstance(value, (list, tuple)):
            result[name] = [tokens.map(item) for item in value]
        elif isinstance(value, int):
            ceiling = _int_ceiling(name)
            if ceiling is not None and name.endswith("key_value_heads") and ("kv_lora_rank" in fields or not grouped):
                ceiling = 4  # latent attention expands its keys to all heads, the grouping must be trivial
            if ceiling is None or value <= ceiling:
                if nested and value != _class_default(fields[name]):
                    result[name] = value
                continue
            is_layer_count = ceiling == LAYERS and value == full_layers
            result[name] = (
                layers
                if is_layer_count and name in ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "depth")
                else ceiling
            )
        elif isinstance(value, (list, tuple)) and not name.startswith("_"):
            small = _shrink_list(name, value, full_layers, layers)
            if small is not None:
                result[name] = small
    return result


def deep_update(target: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Apply `changes`, whose keys may be dotted paths into nested configurations; `...` removes a key."""
    for path, value in changes.items():
        node = target
        *parents, last = path.split(".")
        for parent in parents:
            node = node.setdefault(parent, {})
        if callable(value):  # made afresh for every configuration, because models write into nested ones
            node[last] = value()
        elif value is ...:
            node.pop(last, None)
        else:
            node[last] = copy.deepcopy(value)
    return target


def tiny_config(
    config_class: type[PreTrainedConfig], changes: dict[str, Any] | None = None, *, grouped: bool = True
) -> PreTrainedConfig:
    kwargs = shrunk_kwargs(config_class, TokenIds(), grouped=grouped)
    return config_class(**deep_update(kwargs, changes or {}))
