"""Names of the files in a model folder."""

from __future__ import annotations

PLAIN, OURS = "model", "quietformer"
"""Stems of the weight files: transformers' own, and the one it does not look for."""

PROCESSOR_FILES = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "vocab.bpe", "merges.txt",
    "special_tokens_map.json", "added_tokens.json", "spiece.model", "sentencepiece*.model", "spm*.model", "*.spm",
    "*.tiktoken", "bpe.codes", "dict.txt", "normalizer.json", "chat_template.*", "preprocessor_config.json",
    "processor_config.json", "video_preprocessor_config.json", "generation_config.json",
)  # fmt: skip

SENTENCE_FILES = ("modules.json", "config_sentence_transformers.json", "sentence_*_config.json", "[0-9]_[A-Z]*")
"""What makes a folder a sentence-transformers one, with a subfolder for each module."""

STALE = (f"{PLAIN}*.safetensors*", f"{OURS}*.safetensors*", "pytorch_model*.bin", *PROCESSOR_FILES, *SENTENCE_FILES)
"""An earlier model's weights and tokenizer, which saving into its folder replaces."""
