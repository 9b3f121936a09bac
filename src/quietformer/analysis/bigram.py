"""What a table of word pairs makes of a text: the least a language model should beat."""

# V words of the vocabulary, N pairs of neighbours

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

Tokens = Sequence[int] | np.ndarray[Any, Any]
BACKOFFS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""How many counts the unigram is worth; the best of these on the text asked about is taken, in the bigram's favour."""


def bigram_perplexity(
    train: Iterable[Tokens], asked: Iterable[Tokens], *, vocabulary: int, never_asked: Sequence[int] = ()
) -> float:
    """Perplexity of P(b | a) = (count(a, b) + k P(b)) / (count(a) + k), over the neighbours in the sequences asked about."""
    first_N, second_N = _neighbours(train)
    pairs, counts = np.unique(first_N * vocabulary + second_N, return_counts=True)
    before_V = np.bincount(first_N, minlength=vocabulary).astype(np.float64)
    unigram_V = np.bincount(second_N, minlength=vocabulary) + 1.0
    unigram_V /= unigram_V.sum()
    first, second = _neighbours(asked)
    counted = ~np.isin(second, np.asarray(list(never_asked), dtype=np.int64))
    first, second = first[counted], second[counted]
    key = first * vocabulary + second
    place = np.minimum(np.searchsorted(pairs, key), len(pairs) - 1)
    together = np.where(pairs[place] == key, counts[place], 0)
    losses = [-np.log((together + k * unigram_V[second]) / (before_V[first] + k)).mean() for k in BACKOFFS]
    return math.exp(min(losses))


def _neighbours(sequences: Iterable[Tokens]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    arrays = [np.asarray(sequence, dtype=np.int64) for sequence in sequences]
    return np.concatenate([a[:-1] for a in arrays]), np.concatenate([a[1:] for a in arrays])
