"""Tiny speech models in folders, and recordings with transcripts, for several rooms."""

from __future__ import annotations

import json
import wave

import numpy as np
import torch
from transformers import (
    GenerationConfig,
    Wav2Vec2Config,
    Wav2Vec2CTCTokenizer,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForCTC,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

from quietformer.data.tokenizers import train_tokenizer

RATE = 16_000
MELS, SECONDS, WIDTH = 8, 1, 16
WORDS = ["a quiet head", "does nothing at all", "and says so", "every layer listens", "to the same sound", "once more"]


def write_wav(path, values, *, rate=RATE, width=2, channels=1):
    """Values of [-1, 1] as a wav file of so many bytes a sample."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scaled = np.round(np.asarray(values, np.float64) * (2.0 ** (8 * width - 1) - 1)).astype(np.int64)
    if width == 1:
        scaled += 128
    data = b"".join(int(value).to_bytes(width, "little", signed=width > 1) for value in scaled for _ in range(channels))
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", ""))
        file.writeframes(data)


def write_speech(folder, *, count=6, transcripts=True):
    """Noise of different pitch and length; a text of words beside each."""
    draw = np.random.default_rng(0)
    for number in range(count):
        length = int(RATE * SECONDS * draw.uniform(0.3, 0.9))
        tone = np.sin(2 * np.pi * (200 + 150 * number) * np.arange(length) / RATE)
        write_wav(folder / f"{number:02d}.wav", 0.4 * tone + 0.1 * draw.uniform(-1, 1, length))
        if transcripts:
            (folder / f"{number:02d}.txt").write_text(WORDS[number % len(WORDS)] + "\n")
    return folder


def _loud_(model):
    """Weights large enough for attention to matter."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0.0, 0.2)
    return model.eval()


def whisper(folder):
    """A Whisper of one layer with windows of one second, its tokenizer and feature extractor."""
    tokenizer = train_tokenizer(WORDS, vocabulary=280, characters=1000, task="causal")
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    start = {"bos_token_id": tokenizer.bos_token_id, "decoder_start_token_id": tokenizer.bos_token_id}
    model = WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=len(tokenizer), num_mel_bins=MELS, d_model=WIDTH, encoder_layers=1, decoder_layers=1,
            encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32,
            max_source_positions=50 * SECONDS, max_target_positions=128, **ends, **start,
        )
    )  # fmt: skip
    model.generation_config = GenerationConfig(
        max_length=128, is_multilingual=False, return_timestamps=False, **ends, **start
    )
    _loud_(model).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=MELS, chunk_length=SECONDS).save_pretrained(folder)
    return folder


def wav2vec2(folder):
    """A wav2vec 2.0 of one layer that names a letter for each moment."""
    letters = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, "|": 4} | {
        letter: place for place, letter in enumerate("abcdefghijklmnopqrstuvwxyz", start=5)
    }
    model = Wav2Vec2ForCTC(
        Wav2Vec2Config(
            vocab_size=len(letters), hidden_size=WIDTH, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
            conv_dim=(8, 8), conv_stride=(8, 8), conv_kernel=(8, 8), num_feat_extract_layers=2,
            num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
        )
    )  # fmt: skip
    _loud_(model).save_pretrained(folder)
    (folder / "letters.json").write_text(json.dumps(letters))
    Wav2Vec2CTCTokenizer(str(folder / "letters.json")).save_pretrained(folder)
    Wav2Vec2FeatureExtractor(return_attention_mask=False).save_pretrained(folder)
    return folder
