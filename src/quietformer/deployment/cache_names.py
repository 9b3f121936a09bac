"""What inputs and outputs of a graph with past keys and values are called, as optimum and transformers.js expect."""

from __future__ import annotations

from collections.abc import Iterable

MASK, POSITIONS = "attention_mask", "position_ids"
PAST_PREFIX, PRESENT_PREFIX = "past_key_values.", "present."
STATES, ENCODER_MASK, USE_CACHE = "encoder_hidden_states", "encoder_attention_mask", "use_cache_branch"
BATCH, NEW, PAST, TOTAL = "batch_size", "sequence_length", "past_sequence_length", "total_sequence_length"
ENCODED = "encoder_sequence_length"
"""Names of free dimensions."""
ENCODER_PART = ".encoder."
"""In the names of keys and values of what an encoder gave."""


def past_names(parts: Iterable[str]) -> list[str]:
    """`past_key_values.0.key`, ..."""
    return [f"{PAST_PREFIX}{part}" for part in parts]


def present_names(parts: Iterable[str]) -> list[str]:
    """`present.0.key`, ..."""
    return [f"{PRESENT_PREFIX}{part}" for part in parts]


def is_past(name: str) -> bool:
    """Whether an input is a part of the cache."""
    return name.startswith(PAST_PREFIX)
