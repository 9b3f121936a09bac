"""Texts continued by an exported folder: prompts to tokens, tokens one after another, tokens to text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quietformer.config.options.generate import GenerationOptions
from quietformer.deployment.exported_folder import MADE, ExportedFolder
from quietformer.deployment.generation import Generator
from quietformer.deployment.runtime_model import Array, RuntimeModel
from quietformer.errors import QuietformerError


def continued_texts(
    exported: ExportedFolder, model: RuntimeModel, prompts: Sequence[str], options: GenerationOptions
) -> list[str]:
    """What the model writes after each prompt, without the prompt; prompts of similar length share a batch."""
    if not model.has_cache:
        raise QuietformerError(
            f"{exported.folder} gives {model.output} without past keys and values, so it cannot generate; "
            f"{MADE} of a causal language model"
        )
    tokens: list[list[int]] = exported.tokenizer(list(prompts))["input_ids"]
    room = _room(exported, tokens)
    generator = Generator(model, exported.end_tokens, options)
    found: dict[int, list[int]] = {}
    order = sorted(range(len(tokens)), key=lambda place: -len(tokens[place]))
    for begin in range(0, len(order), options.batch_size):
        places = order[begin : begin + options.batch_size]
        batch, mask = padded_left([tokens[place] for place in places])
        found |= dict(zip(places, generator.continued(batch, mask, room), strict=True))
    written = [found[place] for place in range(len(tokens))]
    return [str(text) for text in exported.tokenizer.batch_decode(written, skip_special_tokens=True)]


def padded_left(rows: Sequence[Sequence[int]]) -> tuple[Array, Array]:
    """Tokens that end together, and their mask; what fills the rows up is masked, so any token will do."""
    longest = max(map(len, rows))
    tokens = np.zeros((len(rows), longest), np.int64)
    mask = np.zeros((len(rows), longest), np.int64)
    for place, row in enumerate(rows):
        if row:
            tokens[place, -len(row) :], mask[place, -len(row) :] = row, 1
    return tokens, mask


def _room(exported: ExportedFolder, tokens: list[list[int]]) -> int | None:
    """How many tokens fit after the longest prompt; None where nothing limits them."""
    if not all(tokens):
        raise QuietformerError("a prompt is empty; give at least one word to continue")
    longest = max(map(len, tokens))
    positions = exported.config.get("max_position_embeddings") or exported.config.get("n_positions")
    if not isinstance(positions, int):
        return None
    if longest >= positions:
        raise QuietformerError(f"a prompt has {longest} tokens, and the model has {positions} positions; shorten it")
    return positions - longest
