"""Make one batch of inputs for a tiny model from the signature of its forward method."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from .shrink import TEXT_HIGH, TEXT_LOW

BATCH = 2
LENGTH = 12
DECODER_LENGTH = 10

# Inputs a composite model may need on top of its main one, in the order in which they are added.
_TEXT = ("input_ids",)
_IMAGE = ("pixel_values",)
_OTHER = ("input_values", "input_features", "bbox", "pixel_values_videos", "past_values")


def find_value(config: PreTrainedConfig, names: tuple[str, ...], prefer: tuple[str, ...] = ()) -> Any:
    """First non-None attribute among `names` in the configuration or, failing that, in its nested ones."""
    for part in prefer:
        nested = getattr(config, part, None)
        if isinstance(nested, PreTrainedConfig) and (found := find_value(nested, names, prefer)) is not None:
            return found
    for name in names:
        if config.__dict__.get(name) is not None:
            return config.__dict__[name]
    for value in config.__dict__.values():
        if isinstance(value, PreTrainedConfig) and (found := find_value(value, names, prefer)) is not None:
            return found
    return None


def _pair(value: Any) -> tuple[int, int]:
    return (int(value[-2]), int(value[-1])) if isinstance(value, (list, tuple)) else (int(value), int(value))


_VISION_PARTS = ("vision_config", "image_config", "backbone_config", "encoder_config", "video_config")


def _image_shape(config: PreTrainedConfig) -> tuple[int, int, int]:
    size = find_value(config, ("image_size", "img_size", "crop_size"), _VISION_PARTS) or 32
    channels = find_value(config, ("num_channels", "in_chans", "in_channels"), _VISION_PARTS) or 3
    return (channels if isinstance(channels, int) else 3, *_pair(size))


def _ids(length: int, generator: torch.Generator, high: int = TEXT_HIGH) -> torch.Tensor:
    low = min(TEXT_LOW, high - 1)
    return torch.randint(low, high, (BATCH, length), generator=generator)


def make(name: str, model: PreTrainedModel, generator: torch.Generator) -> Any:
    """A value for the forward argument `name`, or None if there is no generic recipe for it."""
    config = model.config

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    vocab = find_value(config, ("vocab_size",), ("text_config",)) or TEXT_HIGH
    if name in ("input_ids", "query_input_ids"):
        return _ids(LENGTH, generator, min(TEXT_HIGH, vocab))
    if name == "decoder_input_ids":
        return _ids(DECODER_LENGTH, generator, min(TEXT_HIGH, vocab))
    if name in ("attention_mask", "pixel_mask"):
        return None
    if name == "pixel_values":
        return noise(BATCH, *_image_shape(config))
    if name in ("pixel_values_videos",):
        frames = find_value(config, ("num_frames", "frames_per_clip")) or 4
        return noise(BATCH, frames, *_image_shape(config))
    if name == "input_values":
        return noise(BATCH, 2000)
    if name == "input_features":
        bins = (
            find_value(
                config,
                ("num_mel_bins", "n_mel_bins", "mel_dim", "input_feat_per_channel"),
                ("audio_config", "encoder_config"),
            )
            or 16
        )
        frames = 2 * (find_value(config, ("max_source_positions",), ("audio_config", "encoder_config")) or 32)
        return noise(BATCH, bins, frames)
    if name == "bbox":
        left_top = torch.randint(0, 20, (BATCH, LENGTH, 2), generator=generator)
        return torch.cat([left_top, left_top + torch.randint(1, 20, (BATCH, LENGTH, 2), generator=generator)], dim=-1)
    if name in ("inputs_embeds", "hidden_states", "hidden_state"):
        width = find_value(config, ("hidden_size", "d_model"), ("text_config",)) or 32
        return noise(BATCH, LENGTH, width)
    if name == "encoder_hidden_states":
        names = ("encoder_hidden_size", "cross_attention_hidden_size", "hidden_size", "d_model")
        width = find_value(config, names) or 32
        return noise(BATCH, LENGTH, width)
    if name in ("grid_thw", "image_grid_thw"):
        return torch.tensor([[1, 4, 4]] * BATCH)
    if name == "position_ids":
        return torch.arange(LENGTH).expand(BATCH, LENGTH)
    return None


def plans(model: PreTrainedModel) -> list[list[str]]:
    """Sets of argument names to try in turn, from the smallest to the most complete."""
    parameters = inspect.signature(model.forward).parameters
    required = [
        name
        for name, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    main = model.main_input_name if model.main_input_name in parameters else None
    first = list(dict.fromkeys([*required, *([main] if main else [])]))
    if model.config.is_encoder_decoder and "decoder_input_ids" in parameters:
        first.append("decoder_input_ids")

    def plus(base: list[str], names: tuple[str, ...]) -> list[str]:
        return list(dict.fromkeys([*base, *(name for name in names if name in parameters)]))

    candidates = [
        first,
        plus(first, _TEXT),
        plus(first, _IMAGE),
        plus(first, _TEXT + _IMAGE),
        plus(first, _TEXT + _OTHER),
        plus(first, _TEXT + _IMAGE + _OTHER),
        plus([], ("inputs_embeds", "hidden_states")),
    ]
    unique: list[list[str]] = []
    for candidate in candidates:
        if candidate and candidate not in unique:
            unique.append(candidate)
    return unique


def synthesise(model: PreTrainedModel, names: list[str], seed: int) -> Iterator[dict[str, Any]]:
    """Input sets for the given names, with the layouts that models disagree about as alternatives."""
    generator = torch.Generator().manual_seed(seed + 1)
    made = {name: make(name, model, generator) for name in names}
    made = {name: value for name, value in made.items() if value is not None}
    if "grid_thw" in made:  # encoders that take the patches of all images as rows of one matrix
        config = model.config
        width = math.prod(
            find_value(config, names) or 1
            for names in (("in_channels", "num_channels"), ("temporal_patch_size",), ("patch_size",), ("patch_size",))
        )
        patches = torch.randn(16 * BATCH, width, generator=generator)
        made |= {name: patches for name in ("pixel_values", "hidden_states", "pixels") if name in made or name in names}
    yield made
    if "input_features" in made:  # (batch, bins, frames) or (batch, frames, bins)
        yield {**made, "input_features": made["input_features"].transpose(1, 2).contiguous()}
    if "input_values" in made:  # (batch, samples) or (batch, channels, samples)
        yield {**made, "input_values": made["input_values"][:, None]}
    if "pixel_values" in made:  # a single image or a stack of frames
        frames = find_value(model.config, ("num_frames", "frames_per_clip")) or 2
        yield {**made, "pixel_values": made["pixel_values"][:, None].repeat(1, frames, 1, 1, 1)}
