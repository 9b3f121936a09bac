"""What the generic recipe does not get right, folder by folder."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import Gemma4TextConfig, PreTrainedModel, ViTConfig

from . import recipes
from .shrink import HIDDEN, TokenIds, shrunk_kwargs


@dataclass(frozen=True)
class Override:
    """`config` holds dotted-path changes of the shrunk configuration; `...` as a value drops the shrunk value."""

    cls: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    inputs: recipes.Inputs | None = None
    # Called on the finished model, for state that is neither a weight nor part of the configuration.
    prepare: Callable[[PreTrainedModel], None] | None = None
    # Set where building is not attempted.
    reason: str | None = None


# -------------------------------------------------------------------------------------------- shared config parts

_MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
_TEXT_MROPE = {"text_config.rope_parameters": _MROPE}
_HALF_MROPE = {"text_config.rope_parameters": {**_MROPE, "mrope_section": [1, 1, 0], "partial_rotary_factor": 0.5}}
_HYBRID = {"layer_types": ["linear_attention", "full_attention"]}
_DETR = {"decoder_in_channels": (HIDDEN, HIDDEN, HIDDEN)}
_SERIES = {
    "prediction_length": 6,
    "context_length": 12,
    "lags_sequence": [1, 2, 3],
    "num_time_features": 1,
    "d_model": HIDDEN,
}
_SAM = {
    "vision_config.num_pos_feats": HIDDEN // 2,
    "vision_config.global_attn_indexes": [1],
    "vision_config.window_size": 2,
    "prompt_encoder_config.image_embedding_size": 4,
}
_OCR_WIDE = recipes.normal(pixel_values=(3, 96, 128))


_SAM2_VISION = {
    "backbone_config.image_size": [64, 64],
    "backbone_config.hidden_size": 8,
    "backbone_config.window_size_per_stage": [4, 4, 2, 2],
    "backbone_config.blocks_per_stage": [1, 1, 2, 1],
    "backbone_config.global_attention_blocks": [3],
    "backbone_config.window_positional_embedding_background_size": [2, 2],
    "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
}
_SAM2 = {
    **{f"vision_config.{path}": value for path, value in _SAM2_VISION.items()},
    "prompt_encoder_config.image_size": 64,
    "prompt_encoder_config.patch_size": 16,
}
_SAM3_TRACKER = {
    "vision_config.backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
    "vision_config.backbone_config.window_size": 2,
    "vision_config.backbone_config.global_attn_indexes": [1],
}


# The memory channels are fixed at 64 in the model's code and must be smaller than the hidden size.
_TRACKER: dict[str, Any] = {
    "memory_attention_rope_feat_sizes": [4, 4],
    "memory_encoder_output_channels": 64,
    "image_size": 64,
    "vision_config.fpn_hidden_size": 128,
    "prompt_encoder_config.hidden_size": 128,
    "mask_decoder_config.hidden_size": 128,
    "mask_decoder_config.iou_head_hidden_dim": 128,
    "memory_attention_hidden_size": 128,
    "memory_encoder_hidden_size": 128,
    "mask_downsampler_embed_dim": 128,
    "memory_fuser_embed_dim": 128,
}
_VIDEO_SAM2 = {**_SAM2, **_TRACKER}
_VIDEO_SAM3 = {
    **_SAM3_TRACKER,
    **_TRACKER,
    "vision_config.backbone_config.image_size": 64,
    "vision_config.backbone_config.patch_size": 16,
    "prompt_encoder_config.image_size": 64,
    "prompt_encoder_config.patch_size": 16,
}


def _classifier() -> ViTConfig:
    return ViTConfig(
        hidden_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
        num_labels=HIDDEN,
    )  # type: ignore[call-arg]


def _gemma4_draft() -> dict[str, Any]:
    # The default of the draft model fails its own validation, so there is nothing to shrink.
    return {
        **shrunk_kwargs(Gemma4TextConfig, TokenIds()),
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
        "num_kv_shared_layers": 2,
        "global_head_dim": 16,
    }


def _with_forward(model: PreTrainedModel, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Change the forward pass by a subclass, not on the instance, so that copies of the model have it too."""
    cls = type(model)
    wrapped = functools.wraps(cls.forward)(make(cls.forward))
    model.__class__ = type(cls.__name__, (cls,), {"forward": wrapped, "__module__": cls.__module__})


def _pure_forward(model: PreTrainedModel) -> None:
    """Let the forward pass work on a copy of its session, so that repeated passes start from the same state."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(self: Any, inference_session: Any, *args: Any, keep_state: bool = False, **kwargs: Any) -> Any:
            session = inference_session if keep_state else copy.deepcopy(inference_session)
            return original(self, session, *args, **kwargs)

        return forward

    _with_forward(model, make)


def _seeded_forward(model: PreTrainedModel) -> None:
    """For models that start from a random state on every pass: draw the same one every time."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            with torch.random.fork_rng():
                torch.manual_seed(0)
                return original(self, *args, **kwargs)

        return forward

    _with_forward(model, make)


def _calm_convolutions(model: PreTrainedModel) -> None:
    # Parallel branches that are summed make the signal explode before it reaches attention.
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.Conv2d):
                module.weight.mul_(0.4)


OVERRIDES: dict[str, Override] = {
    "audio_spectrogram_transformer": Override(
        config={"max_length": 64, "num_mel_bins": 16, "frequency_stride": 8, "time_stride": 8},
        inputs=recipes.normal(input_values=(64, 16)),
    ),
    "bamba": Override(config={"attn_layer_indices": [1]}),
    "bridgetower": Override(config={"hidden_size": 64, "text_config.hidden_size": 64, "vision_config.hidden_size": 64}),
    "chameleon": Override(config={"vocabulary_map": {"<image>": 100, "IMGIMGA": 101, "IMGIMGB": 102}}),
    "chmv2": Override(config={"backbone_config.return_class_token": True}),
    "cohere_compass": Override(
        config={"text_config.rope_parameters": {"full_attention": {**_MROPE, "mrope_interleaved": False}}}
    ),
    "d_fine": Override(config=_DETR),
    "dbrx": Override(
        config={"attn_config.rope_theta": 10000.0, "attn_config.kv_n_heads": 2, "attn_config.clip_qkv": 8.0}
    ),
    "decision_transformer": Override(
        cls="DecisionTransformerModel", config={"max_ep_len": 64}, inputs=recipes.trajectory
    ),
    "deepseek_ocr2": Override(
        config={
            "text_config.mlp_layer_types": ["dense", "sparse"],
            "text_config.n_group": 1,
            "text_config.topk_group": 1,
        }
    ),
    "deepseek_v2": Override(config={"num_experts_per_tok": 2}),
    "deimv2": Override(config=_DETR),
    "dia": Override(config={"decoder_config.num_channels": 3, "delay_pattern": [0, 1, 2]}, inputs=recipes.dia),
    "diffusion_gemma": Override(
        config={
            "text_config.num_experts": 4,
            "text_config.top_k_experts": 2,
            "text_config.moe_intermediate_size": 32,
            "canvas_length": 8,
            "text_config.global_head_dim": 16,
        }
    ),
    "edgetam": Override(
        config={
            "vision_config.backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
            "prompt_encoder_config.image_size": 64,
            "prompt_encoder_config.patch_size": 16,
        },
        inputs=recipes.ready_embeddings,
    ),
    "edgetam_video": Override(
        config={
            **_TRACKER,
            "vision_config.backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
            "memory_attention_rope_k_sizes": [4, 4],
            "perceiver_resampler_hidden_size": 64,
            "perceiver_resampler_attention_head_dim": 64,
            "perceiver_resampler_num_latents": 16,
            "perceiver_resampler_num_latents_2d": 16,
            "prompt_encoder_config.image_size": 64,
            "prompt_encoder_config.patch_size": 16,
        },
        inputs=recipes.video_features,
        prepare=_pure_forward,
    ),
    "efficientloftr": Override(
        config={
            "out_features": [8, 8, 16, HIDDEN],
            "stage_num_blocks": [1, 1, 1, 1],
            "num_attention_layers": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 2.0},
        },
        inputs=recipes.normal(pixel_values=(2, 3, 64, 64)),
    ),
    "embedding_gemma2": Override(config={"text_config.global_head_dim": 16}),
    "ernie4_5_vl_moe": Override(
        config={
            "text_config.rope_parameters": {**_MROPE, "mrope_section": [1, 1, 2]},
            "text_config.moe_intermediate_size": [32, 16],
        }
    ),
    "esm": Override(
        config={"vocab_size": 128, "pad_token_id": 1, "mask_token_id": 100, "position_embedding_type": "rotary"}
    ),
    "esmfold2": Override(
        config={
            "single_inputs_size": HIDDEN + 67,
            "atom_feature_dim": 389,
            "lm_encoder.lm_dropout": 0.0,
            **{
                f"{part}.{name}": 1
                for part in ("atom_encoder", "structure_head.diffusion_module.atom_encoder")
                for name in ("num_spatial_rope_pairs_per_axis", "num_uid_rope_pairs")
            },
        },
        inputs=recipes.complex_of_atoms,
        prepare=_seeded_forward,
    ),
    "fun_asr_nano": Override(config={"adaptor_config.intermediate_size": 8}),
    "gemma3n": Override(
        cls="Gemma3nForCausalLM",
        config={
            "num_kv_shared_layers": 0,
            "intermediate_size": [64, 64],
            "activation_sparsity_pattern": [0.0, 0.0],
            "laurel_rank": 8,
        },
    ),
    "gemma4": Override(config={"text_config.global_head_dim": 16}),
    "gemma4_assistant": Override(config={"text_config": _gemma4_draft}, inputs=recipes.shared_states),
    "gemma4_unified": Override(config={"text_config.global_head_dim": 16}),
    "gemma4_unified_assistant": Override(
        config={"text_config.num_kv_shared_layers": 2, "text_config.global_head_dim": 16}, inputs=recipes.shared_states
    ),
    "glm46v": Override(config=_TEXT_MROPE),
    "glm4v": Override(config=_TEXT_MROPE),
    "glm4v_moe": Override(config=_HALF_MROPE),
    "glm_image": Override(config=_TEXT_MROPE),
    "glm_ocr": Override(config=_TEXT_MROPE),
    "granitemoehybrid": Override(config=_HYBRID),
    "hunyuan_vl": Override(config={"text_config.rope_parameters": {**_MROPE, "mrope_section": [1, 1, 1, 1]}}),
    "idefics": Override(config={"cross_layer_interval": 1, "alpha_initializer": "ones"}, inputs=recipes.idefics),
    "informer": Override(config={**_SERIES, "attention_type": "prob"}, inputs=recipes.forecast),
    "jamba": Override(config={"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False}),
    "lfm2_moe": Override(config={"layer_types": ["conv", "full_attention"]}),
    "lightglue": Override(
        config={"keypoint_detector_config.keypoint_decoder_dim": 65, "keypoint_detector_config.max_keypoints": 8},
        inputs=recipes.normal(pixel_values=(2, 3, 32, 32)),
    ),
    "longcat_flash": Override(config={"qk_head_dim": 12, "head_dim": 4}),
    "lw_detr": Override(
        config={
            "projector_scale_factors": [1.0],
            "backbone_config.num_windows": 4,
            "backbone_config.image_size": 64,
            "backbone_config.window_block_indices": [0, 2],
        },
        inputs=recipes.normal(pixel_values=(3, 64, 64)),
    ),
    "moonshine_streaming": Override(config={"num_key_value_heads": 4}),
    "moshi": Override(cls="MoshiForCausalLM"),
    "muse_glimmer_assistant": Override(config={"target_layer_ids": [0, 1]}, inputs=recipes.glimmer_draft),
    "musicgen": Override(inputs=recipes.codebooks),
    "musicgen_melody": Override(inputs=recipes.codebooks),
    "nemotron3_5_asr": Override(config={"encoder_config.default_num_lookahead_tokens": 1}),
    # Eager mode takes a row that may see every frame for a fully masked one; keep every row partly masked.
    "nemotron_asr_streaming": Override(config={"default_num_lookahead_tokens": 1}),
    "neomme": Override(
        config={
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
            }
        }
    ),
    "neucodec": Override(
        config={"quantization_dim": 2 * HIDDEN, "encoder_hidden_size": 4},
        inputs=recipes.normal(input_values=(1, 1920), input_features=(6, HIDDEN)),
    ),
    "paddleocr_vl": Override(config=_TEXT_MROPE),
    "patchtsmixer": Override(
        config={"self_attn": True, "self_attn_heads": 2}, inputs=recipes.normal(past_values=(32, 1))
    ),
    "patchtst": Override(config={"patch_length": 4, "patch_stride": 4}, inputs=recipes.normal(past_values=(32, 1))),
    "pe_audio_video": Override(config={"audio_video_config.video_config.vision_config": _classifier}),
    "pe_video": Override(config={"video_config.vision_config": _classifier}),
    "perception_lm": Override(config={"vision_config.model_args": {"embed_dim": HIDDEN}}),
    "pi0": Override(inputs=recipes.flow_action),
    "pix2struct": Override(inputs=recipes.flattened_patches),
    "pp_doclayout_v2": Override(config=_DETR),
    "pp_doclayout_v3": Override(config={**_DETR, "x4_feat_dim": 8}),
    "pp_doclayout_v4": Override(config=_DETR),
    "pp_formulanet": Override(
        config={
            "vision_config.post_conv_in_channels": HIDDEN,
            "vision_config.post_conv_mid_channels": HIDDEN,
            "vision_config.global_attn_indexes": [1],
            "vision_config.window_size": 2,
        }
    ),
    "pp_ocrv5_mobile_rec": Override(
        cls="PPOCRV5MobileRecForTextRecognition", inputs=_OCR_WIDE, prepare=_calm_convolutions
    ),
    "pp_ocrv5_server_rec": Override(inputs=_OCR_WIDE),
    "pp_ocrv6_small_rec": Override(
        cls="PPOCRV6SmallRecForTextRecognition", inputs=recipes.normal(pixel_values=(3, 48, 96))
    ),
    "pp_ocrv6_tiny_rec": Override(inputs=_OCR_WIDE),
    "qwen2_5_omni": Override(cls="Qwen2_5OmniThinkerForConditionalGeneration", config=_TEXT_MROPE),
    "qwen2_5_vl": Override(config=_TEXT_MROPE),
    "qwen2_vl": Override(config=_TEXT_MROPE),
    "qwen4_exp": Override(
        config={
            "text_config.indexer_n_heads": 2,
            "text_config.indexer_kv_heads": 1,
            "text_config.indexer_head_dim": 8,
            "text_config.indexer_budget": 8,
            "text_config.indexer_compress_ratio": 2,
        }
    ),
    "recurrent_gemma": Override(config={"num_hidden_layers": 3}),
    "rt_detr": Override(config=_DETR),
    "rt_detr_v2": Override(config=_DETR),
    "sam": Override(config=_SAM, inputs=recipes.one_point),
    "sam2": Override(config=_SAM2, inputs=recipes.one_point),
    "sam2_video": Override(config=_VIDEO_SAM2, inputs=recipes.video_session, prepare=_pure_forward),
    "sam3_tracker_video": Override(config=_VIDEO_SAM3, inputs=recipes.video_session, prepare=_pure_forward),
    "sam3_tracker": Override(config=_SAM3_TRACKER, inputs=recipes.one_point),
    "sam3_video": Override(
        reason="the forward pass needs a stateful video session and returns thresholded detections; "
        "its parts are those of sam3 and sam3_tracker_video"
    ),
    "sam_hq": Override(config=_SAM, inputs=recipes.one_point),
    "sapiens2": Override(config={"num_key_value_heads_per_layer": [4, 2], "num_key_value_attention_heads": 2}),
    # The two answer tokens default to numbers of the full-size vocabulary.
    "shieldgemma2": Override(config={"yes_token_index": 11, "no_token_index": 12}),
    "siglip2": Override(cls="Siglip2Model", inputs=recipes.packed_patches),
    "swin": Override(config={"image_size": 64, "window_size": 2}),
    "time_series_transformer": Override(config=_SERIES, inputs=recipes.forecast),
    "timesfm": Override(config={"patch_length": 8, "context_length": 32, "horizon_length": 8}, inputs=recipes.timesfm),
    "timesfm2_5": Override(
        config={"patch_length": 8, "context_length": 32, "horizon_length": 8}, inputs=recipes.timesfm2
    ),
    "vibevoice": Override(config={"audio_config.num_filters": 2, "semantic_model_config.num_filters": 2}),
    "vibevoice_asr": Override(
        config={"acoustic_tokenizer_encoder_config.num_filters": 2, "semantic_tokenizer_encoder_config.num_filters": 2}
    ),
    "vit_mae": Override(inputs=recipes.masked_autoencoder),
    "wav2vec2_bert": Override(config={"vocab_size": 128}, inputs=recipes.normal(input_features=(12, HIDDEN))),
    "xcodec2": Override(
        config={"quantization_dim": 2 * HIDDEN, "encoder_hidden_size": 4},
        inputs=recipes.normal(input_values=(1, 1920), input_features=(6, HIDDEN)),
    ),
    "xmod": Override(config={"default_language": "en_XX"}),
    "zamba": Override(
        config={
            "attention_hidden_size": 2 * HIDDEN,
            "attention_head_dim": 16,
            "num_hidden_layers": 3,
            "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
        }
    ),
}
