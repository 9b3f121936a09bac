"""Normalized clipped softmax: its gamma by row, and what that keeps constant."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import quietformer as qf
from quietformer.attention.normalizers.softmax import masked_softmax
from quietformer.config.attention import HeadGeometry
from quietformer.errors import SpecError

GEOMETRY = HeadGeometry(n_heads=1, d_model=4, d_value=4)
rows = hnp.arrays(np.float64, st.integers(1, 12), elements=st.floats(-30, 30))


@given(rows, st.floats(0, 1), st.floats(1, 4))
def test_it_is_clipped_softmax_with_a_gamma_that_gives_every_row_the_same_sum(x, beta, zeta):
    scores = torch.from_numpy(x).view(1, 1, 1, -1)
    normalizer = qf.NormalizedClipped(beta=beta, zeta=zeta).build(GEOMETRY)
    probs, n_keys = masked_softmax(scores, None), len(x)
    gamma = normalizer.full_gamma(n_keys)
    stretched = (zeta - gamma) * probs + gamma
    if n_keys > 1:
        np.testing.assert_allclose(float(stretched.sum()), beta, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(float((zeta - gamma) * 1 + gamma), zeta)
    torch.testing.assert_close(normalizer(scores), stretched.clamp(0, 1), rtol=1e-9, atol=1e-12)


def test_a_uniform_row_keeps_its_sum_at_every_length():
    normalizer = qf.NormalizedClipped(beta=0.5, zeta=3.0).build(GEOMETRY)
    for length in (2, 5, 100):
        torch.testing.assert_close(normalizer(torch.zeros(1, 1, 1, length)).sum(), torch.tensor(0.5))


def test_causal_rows_are_clipped_like_sequences_of_their_own():
    scores, visible = torch.randn(1, 1, 6, 6), torch.ones(6, 6, dtype=torch.bool).tril()[None, None]
    normalizer = qf.NormalizedClipped(zeta=2.0).build(GEOMETRY)
    ours = normalizer(scores.masked_fill(~visible, torch.finfo(torch.float32).min), visible)
    for t in range(6):
        torch.testing.assert_close(ours[:, :, t, : t + 1], normalizer(scores[:, :, t : t + 1, : t + 1])[:, :, 0])


def test_a_sum_above_the_largest_weight_is_refused():
    with pytest.raises(SpecError, match="beta must be at most zeta, got beta=2, zeta=1"):
        qf.NormalizedClipped(beta=2.0)
