"""Tokens one after another, from a graph that keeps what it has read."""

# B batch, T tokens of the prompt, V vocabulary

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np

from quietformer.config.options.generate import GenerationOptions
from quietformer.data.first_tokens import FirstTokens
from quietformer.deployment.cache_names import MASK, POSITIONS
from quietformer.deployment.last_logits import COUNT
from quietformer.deployment.runtime_model import Array, Feeds, RuntimeModel, positions_of

Choice = Callable[[Array], Array]
"""From logits (B, V) to tokens (B)."""


@dataclass
class Generator:
    """Continues prompts with one graph; `ends` are the tokens that end a text."""

    model: RuntimeModel
    ends: Collection[int]
    options: GenerationOptions
    fixed: Feeds = field(default_factory=dict)
    """What the graph takes with every step, such as the states of an encoder."""
    first: FirstTokens | None = None
    """What a decoder that writes of something else, as Whisper does of sound, is told of its tokens."""

    def __post_init__(self) -> None:
        self.choose = sampler(self.options) if self.options.do_sample else most_likely

    def continued(self, tokens_BT: Array, mask_BT: Array, room: int | None = None) -> list[list[int]]:
        """The new tokens of every prompt, up to one that ends it; prompts are padded on the left."""
        steps = self.model.steps()
        most = self.options.max_new_tokens if room is None else min(room, self.options.max_new_tokens)
        written: list[list[int]] = [[] for _ in tokens_BT]
        running = np.ones(len(tokens_BT), bool)
        mask, further = mask_BT, tokens_BT
        for count in range(most):
            chosen = self.choose(self._allowed(steps.read(self._feeds(further, mask))[:, -1], count))
            for row in np.flatnonzero(running):
                written[row].append(int(chosen[row]))
                running[row] = written[row][-1] not in self.ends
            if not running.any():
                break
            mask = np.concatenate([mask, np.ones((len(mask), 1), np.int64)], 1)
            further = chosen[:, None]
        return written

    def _allowed(self, logits_BV: Array, count: int) -> Array:
        """The logits without those of tokens that may not come, or not at the beginning."""
        if self.first is None:
            return logits_BV
        banned = [*self.first.never, *(self.first.never_first if not count else ())]
        allowed = logits_BV.copy()
        allowed[:, banned] = -np.inf
        return allowed

    def _feeds(self, tokens_BT: Array, mask: Array) -> Feeds:
        """What the graph takes of the new tokens, the mask of all tokens, and their places."""
        new = tokens_BT.shape[1]
        given = {"input_ids": tokens_BT, MASK: mask, POSITIONS: positions_of(mask)[:, -new:], **self.fixed}
        found = {name: np.ascontiguousarray(array) for name, array in given.items() if name in self.model.inputs}
        if COUNT in self.model.optional_inputs:
            found[COUNT] = np.array(1, np.int64)
        return found


def most_likely(logits_BV: Array) -> Array:
    """Greedy decoding; of equal logits the first."""
    tokens: Array = logits_BV.argmax(-1).astype(np.int64)
    return tokens


def sampler(options: GenerationOptions) -> Choice:
    """Draws with one stream of random numbers, so that a seed gives the same text again."""
    random = np.random.default_rng(options.seed)

    def draw(logits_BV: Array) -> Array:
        kept_BV = nucleus(logits_BV / options.temperature, options.top_p)
        # The largest of logits with Gumbel noise is a draw from their softmax.
        tokens: Array = (kept_BV + random.gumbel(size=kept_BV.shape)).argmax(-1).astype(np.int64)
        return tokens

    return draw


def nucleus(logits_BV: Array, top_p: float) -> Array:
    """The logits of the most likely tokens whose probabilities add up to `top_p`, and -inf for all others."""
    if top_p >= 1:
        return logits_BV
    order_BV = (-logits_BV).argsort(-1, kind="stable")
    sorted_BV = np.take_along_axis(logits_BV, order_BV, -1).astype(np.float64)
    shares_BV = np.exp(sorted_BV - sorted_BV[:, :1])
    shares_BV /= shares_BV.sum(-1, keepdims=True)
    dropped_BV = shares_BV.cumsum(-1) - shares_BV >= top_p  # the token that crosses the line is kept
    found = logits_BV.copy()
    np.put_along_axis(found, order_BV, np.where(dropped_BV, -np.inf, sorted_BV).astype(found.dtype), -1)
    return found
