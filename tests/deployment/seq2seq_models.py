"""Tiny encoder-decoders of several families, to export and write with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GenerationConfig,
    MarianConfig,
    MarianMTModel,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from quietformer.data.tokenizers import train_tokenizer
from tests.deployment.exports import TEXTS

VOCABULARY, POSITIONS, MELS, FRAMES = 200, 48, 8, 40
PAD, START, END = 0, 1, 2
SPECIAL: dict[str, Any] = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END}
ENCODER_SIZES = {"encoder_layers": 1, "encoder_attention_heads": 4, "encoder_ffn_dim": 64}
DECODER_SIZES = {"decoder_layers": 1, "decoder_attention_heads": 4, "decoder_ffn_dim": 64}
SIZES: dict[str, Any] = {"d_model": 32, **ENCODER_SIZES, **DECODER_SIZES, **SPECIAL}
T5_SIZES: dict[str, Any] = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, **SPECIAL}


def tiny_seq2seq(name: str, vocabulary: int = VOCABULARY) -> Any:
    """Weights are spread out, so that the most likely tokens differ from place to place."""
    torch.manual_seed(0)
    words = {"vocab_size": vocabulary}
    text = {**SIZES, **words, "max_position_embeddings": POSITIONS}
    sound = {
        **SIZES, **words, "num_mel_bins": MELS, "max_source_positions": FRAMES // 2, "max_target_positions": POSITIONS,
        "decoder_start_token_id": START, "begin_suppress_tokens": None, "suppress_tokens": None,
    }  # fmt: skip
    made: dict[str, Any] = {
        "whisper": lambda: WhisperForConditionalGeneration(WhisperConfig(**sound)),
        "marian": lambda: MarianMTModel(MarianConfig(decoder_start_token_id=PAD, **text)),
        "bart": lambda: BartForConditionalGeneration(BartConfig(decoder_start_token_id=END, **text)),
        "t5": lambda: T5ForConditionalGeneration(
            T5Config(decoder_start_token_id=PAD, feed_forward_proj="gated-gelu", **T5_SIZES, **words)
        ),
    }
    model = made[name]().eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            spread = 0.05 if "norm" in path or "bias" in path else 0.3 if name == "t5" else 0.5
            parameter.add_(torch.randn_like(parameter), alpha=spread)
    if name == "whisper":
        model.generation_config = GenerationConfig(
            decoder_start_token_id=START, no_timestamps_token_id=vocabulary - 1, suppress_tokens=[7, 11],
            begin_suppress_tokens=[9, END], is_multilingual=False, return_timestamps=False, max_length=POSITIONS, **SPECIAL,
        )  # fmt: skip
    else:
        model.generation_config.bad_words_ids = [[9]]
        model.generation_config.forced_bos_token_id = START if name == "bart" else None
        model.generation_config.forced_eos_token_id = None  # what transformers writes at the last place that is left
    return model


def write_seq2seq(folder: Path, name: str) -> Path:
    """A model folder with a tokenizer."""
    tokenizer = train_tokenizer(TEXTS, vocabulary=VOCABULARY, characters=10_000, task="pairs")
    tiny_seq2seq(name, len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
