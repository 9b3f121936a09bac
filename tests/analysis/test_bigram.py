"""The bigram model against the same formula written out."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from quietformer.analysis.bigram import BACKOFFS, bigram_perplexity


def test_it_is_its_formula():
    draw = random.Random(0)
    train = [[draw.randrange(7) for _ in range(12)] for _ in range(30)]
    asked = [[draw.randrange(7) for _ in range(9)] for _ in range(5)]
    pairs = [pair for row in train for pair in itertools.pairwise(row)]
    unigram = [(sum(b == word for _, b in pairs) + 1) / (len(pairs) + 7) for word in range(7)]
    losses = []
    for k in BACKOFFS:
        terms = [
            -math.log((pairs.count((a, b)) + k * unigram[b]) / (sum(x == a for x, _ in pairs) + k))
            for row in asked
            for a, b in itertools.pairwise(row)
            if b != 3
        ]
        losses.append(sum(terms) / len(terms))
    assert bigram_perplexity(train, asked, vocabulary=7, never_asked=[3]) == pytest.approx(math.exp(min(losses)))


def test_a_text_that_follows_its_pairs_is_hardly_surprising():
    sequence = list(range(20)) * 40
    assert bigram_perplexity([sequence], [sequence[:50]], vocabulary=20) < 1.2
