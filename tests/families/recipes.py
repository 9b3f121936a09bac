"""Inputs for models whose forward pass the generic recipe cannot serve."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.models.esmfold2.modeling_esmfold2 import EsmFold2AtomInputs

from .inputs import BATCH, DECODER_LENGTH, LENGTH
from .shrink import HIDDEN, TEXT_HIGH, TEXT_LOW

Inputs = Callable[[PreTrainedModel, torch.Generator], dict[str, Any]]


def _ids(generator: torch.Generator, *shape: int, high: int = TEXT_HIGH) -> torch.Tensor:
    return torch.randint(TEXT_LOW, high, shape, generator=generator)


def normal(**shapes: tuple[int, ...]) -> Inputs:
    """Gaussian noise of the given shapes, without the batch dimension."""

    def build(model: PreTrainedModel, generator: torch.Generator) -> dict[str, Any]:
        return {name: torch.randn(BATCH, *shape, generator=generator) for name, shape in shapes.items()}

    return build


def with_text(recipe: Inputs, name: str = "input_ids", length: int = LENGTH) -> Inputs:
    def build(model: PreTrainedModel, generator: torch.Generator) -> dict[str, Any]:
        return {name: _ids(generator, BATCH, length), **recipe(model, generator)}

    return build


def forecast(model: PreTrainedModel, generator: torch.Generator) -> dict[str, Any]:
    """Past long enough for the largest lag, plus the future that the decoder is fed with."""
    past = model.config.context_length + max(model.config.lags_sequence)
    future = model.config.prediction_length
    noise = torch.randn(BATCH, past + future, 2, generator=generator)
    return {
        "past_values": noise[:, :past, 0],
        "past_time_features": noise[:, :past, 1:],
        "past_observed_mask": torch.ones(BATCH, past),
        "future_values": noise[:, past:, 0],
        "future_time_features": noise[:, past:, 1:],
    }


def dia(model: PreTrainedModel, generator: torch.Generator) -> dict[str, Any]:
    channels = model.config.decoder_config.num_channels
    return {
        "input_ids": _ids(generator, BATCH, LENGTH),
        "decoder_input_ids": _ids(generator, BATCH, DECODER_LENGTH, channels),
    }


def shared_states(model: PreTrainedModel, generator: torch.Generator) -> dict[str, Any]:
    """Draft models read the key and value states of the main model instead of making their own."""
    config = model.config.get_text_config()

    def pair(layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        sizes = config.per_layer_config[layer]
        shape = (BATCH, sizes.num_key_value_heads, LENGTH, sizes.head_dim)
        return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)

    return {
        "inputs_embeds": torch.randn(BATCH, 1, 2 * model.config.backbone_hidden_size, generator=generator),
        "position_ids": torch.full((BATCH, 1), LENGTH - 1),
        "shared_kv_states": {kind: pair(layer) for layer, kind in enumerate(config.layer_types)},
    }


def glimmer_draft(model: PreTrainedModel, generator: torch.Generator) -> dict[str, Any]:
    block, width = model.config.block_size, model.config.hidden_size
    return {
        "noise_embeds": torch.randn(BATCH, block, width, generator=generator),
        "context_hidden_states": torch.randn(
            BATCH, LENGTH, width * len(model.config.target_layer_ids), generator=generator
        ),
        "attention_mask": torch.ones(BATCH, LENGTH + block, dtype=torch.long),
        "position_ids": torch.arange(LENGTH + block).expand(BATCH, -1),
    }


def video_session(model: PreTrainedModel, generator: torch.Generator, run: bool = True) -> dict[str, Any]:
    """Two tracked objects, prompted on the first of three frames; the forward pass is about the second frame."""
    module = sys.modules[type(model).__module__]
    session_class = getattr(module, type(model).__name__.removesuffix("Model") + "InferenceSession")
    size = model.config.prompt_encoder_config.image_size
    session = session_class(
        video=torch.randn(3, 3, size, size, generator=generator),
        video_height=size,
        video_width=size,
        dtype=torch.float32,
    )
    for object_id in (1, 2):
        index = session.obj_id_to_idx(object_id)
        session.add_point_inputs(
            index,
            0,
            {
                "point_coords": torch.tensor([[[[5.0 * object_id, 7.0]]]]),
                "point_labels": torch.ones(1, 1, 1, dtype=torch.int32),
            },
        )
        session.obj_with_new_inputs.append(object_id)
    if run:
        with torch.no_grad():
            model(session, frame_idx=0, keep_state=True)
    return {"inference_session": session, "frame_idx": 1}


def ready_embeddings(model: PreTrainedModel, generator: torch.Generator) -> dict[str, Any]:
    """Image features at three scales and one prompt point, for a model whose image encoder is not available."""
    shapes = [(HIDDEN // 8, 16, 16), (HIDDEN // 4, 8, 8), (HIDDEN, 4, 4)]
    return {
        "image_embeddings": [torch.randn(BATCH, *shape, generator=generator) for shape in shapes],
        "input_points": torch.tensor([[[[5.0, 7.0]]]]).repeat(BATCH, 1, 1, 1),
        "input_labels": torch.ones(BATCH, 1, 1, dtype=torch.long),
    }


def video_features(model: PreTrainedModel, generator: torch.Generator) -> dict[str, Any]:
    """As above, with the image features of the first two frames put into the session's cache."""
    inputs = video_session(model, generator, run=False)
    session = inputs["inference_session"]
    session.cache.max_vision_features_cache_size = 3
    width = model.config.mask_decoder_config.hidden_size
    shapes = [(256, 1, width // 8), (64, 1, width // 4), (16, 1, width)]
    for frame in (0, 1):
        session.cache.cache_vision_features(
            frame,
            {
                "vision_feats": [torch.randn(shape, generator=generator) for shape in shapes],
                "vision_pos_embeds": [torch.randn(size, 1, width, generator=generator) for size, _, _ in shapes],
            },
        )
    with torch.no_grad():
        model(session, frame_idx=0, keep_state=True)
    return inputs


def packed_patches(model: PreTrainedModel, generator: torch.Generator) -> dict[str, Any]:
    config = model.config.vision_config
    return {
        "input_ids": _ids(generator, BATCH, LENGTH),
        "pixel_values": torch.randn(BATCH, 16, 3 * config.patch_size**2, generator=generator),
        "pixel_attention_mask": torch.ones(BATCH, 16, dtype=torch.long),
        "spatial_shapes": torch.tensor([[4, 4]] * BATCH),
    }


def codebooks(model: PreTrainedModel, generator: torch.Generator) -> dict[str, Any]:
    # The codebooks of one sample are stacked along the batch dimension.
    rows = BATCH * model.config.decoder.num_codebooks
    return {"input_ids": _ids(generator, BATCH, LENGTH), "decoder_input_ids": _ids(generator, rows, DECODER_LENGTH)}


def trajectory(model: PreTrainedModel, generator: torch.Generator) -> dict[str, Any]:
    config = model.config
    return {
        "states": torch.randn(BATCH, LENGTH, config.state_dim, generator=generator),
        "actions": torch.randn(BATCH, LENGTH, config.act_dim, generator=generator),
        "rewards": torch.randn(BATCH, LENGTH, 1, generator=generator),
        "returns_to_go": torch.randn(BATCH, LENGTH, 1, generator=generator),
        "timesteps": torch.arange(LENGTH).expand(BATCH, LENGTH),
        "attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.long),
    }


def complex_of_atoms(model: PreTrainedModel, generator: torch.Generator) -> dict[str, Any]:
    """One protein chain with two atoms per residue."""
    atoms = 2 * LENGTH
    token_of_atom = torch.arange(atoms).div(2, rounding_mode="floor").expand(BATCH, -1)
    index = torch.arange(LENGTH).expand(BATCH, -1)
    zeros = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    return {
        "token_index": index,
        "residue_index": index,
        "asym_id": zeros,
        "sym_id": zeros,
        "entity_id": zeros,
        "mol_type": zeros,
        "res_type": torch.randint(2, 20, (BATCH, LENGTH), generator=generator),
        "token_bonds": torch.zeros(BATCH, LENGTH, LENGTH, 1),
        "attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.bool),
        "num_loops": 0,
        "input_ids": torch.randint(4, 24, (BATCH, LENGTH), generator=generator),
        "atom_inputs": EsmFold2AtomInputs(
            ref_pos=torch.randn(BATCH, atoms, 3, generator=generator),
            ref_charge=torch.zeros(BATCH, atoms),
            atom_attention_mask=torch.ones(BATCH, atoms, dtype=torch.bool),
            ref_element=torch.randint(1, 9, (BATCH, atoms), generator=generator),
            ref_atom_name_chars=torch.randint(1, 60, (BATCH, atoms, 4), generator=generator),
            ref_space_uid=token_of_atom,
            atom_to_token=token_of_atom,
        ),
    }


def idefics(model: PreTrainedModel, generator: torch.Generator) -> dict[str, Any]:
    return {
        "input_ids": _ids(generator, BATCH, LENGTH),
        "pixel_values": torch.randn(BATCH, 1, 3, 32, 32, generator=generator),
        "image_attention_mask": torch.ones(BATCH, LENGTH, 1, dtype=torch.long),
    }


def flow_action(model: PreTrainedModel, generator: torch.Generator) -> dict[str, Any]:
    config = model.config
    image_id = config.vlm_config.image_token_id
    ids = _ids(generator, BATCH, LENGTH)
    patches = torch.full((BATCH, 16), image_id)
    return {
        "state": torch.randn(BATCH, config.max_state_dim, generator=generator),
        "noise": torch.randn(BATCH, config.chunk_size, config.max_action_dim, generator=generator),
        "timestep": torch.full((BATCH,), 0.5),
        "input_ids": torch.cat([patches, ids], dim=1),
        "attention_mask": torch.ones(BATCH, 16 + LENGTH, dtype=torch.long),
        "pixel_values": torch.randn(BATCH, 1, 3, 32, 32, generator=generator),
        "pixel_attention_mask": torch.ones(BATCH, 1, dtype=torch.bool),
    }


def flattened_patches(model: PreTrainedModel, generator: torch.Generator) -> dict[str, Any]:
    # Row and column numbers come first in every patch, and zero marks padding.
    positions = torch.arange(1, 10).repeat(2, 1).T.expand(BATCH, -1, -1).float()
    pixels = torch.randn(BATCH, 9, model.config.vision_config.patch_embed_hidden_size, generator=generator)
    return {
        "flattened_patches": torch.cat([positions, pixels], dim=-1),
        "decoder_input_ids": _ids(generator, BATCH, DECODER_LENGTH),
    }


def masked_autoencoder(model: PreTrainedModel, generator: torch.Generator) -> dict[str, Any]:
    # The noise decides which patches are dropped; without it the model draws its own.
    return {
        "pixel_values": torch.randn(BATCH, 3, 32, 32, generator=generator),
        "noise": torch.rand(BATCH, 16, generator=generator),
    }


def timesfm(model: PreTrainedModel, generator: torch.Generator) -> dict[str, Any]:
    length = 4 * model.config.patch_length
    return {
        "past_values": torch.randn(BATCH, length, generator=generator),
        "past_values_padding": torch.zeros(BATCH, length, dtype=torch.long),
        "freq": torch.zeros(BATCH, 1, dtype=torch.long),
    }


def timesfm2(model: PreTrainedModel, generator: torch.Generator) -> dict[str, Any]:
    return {"past_values": torch.randn(BATCH, 4 * model.config.patch_length, generator=generator)}


def one_point(model: PreTrainedModel, generator: torch.Generator) -> dict[str, Any]:
    """An image with one prompt point, for the promptable segmentation models."""
    return {
        "pixel_values": torch.randn(
            BATCH, 3, *_ONE_POINT_IMAGE.get(model.config.model_type, (32, 32)), generator=generator
        ),
        "input_points": torch.tensor([[[[5.0, 7.0]]]]).repeat(BATCH, 1, 1, 1),
        "input_labels": torch.ones(BATCH, 1, 1, dtype=torch.long),
    }


_ONE_POINT_IMAGE = {"sam2": (64, 64), "edgetam": (64, 64)}
