"""Clipped softmax1: the formula in float64."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import quietformer as qf
from quietformer.config.attention import HeadGeometry

GEOMETRY = HeadGeometry(n_heads=1, d_model=4, d_value=4)
rows = hnp.arrays(np.float64, st.integers(1, 12), elements=st.floats(-30, 30))


@given(rows, st.floats(-0.5, 0), st.floats(1, 1.5))
def test_it_is_softmax1_stretched_and_clipped(x, gamma, zeta):
    ours = qf.ClippedSoftmax1(gamma=gamma, zeta=zeta).build(GEOMETRY)(torch.from_numpy(x).view(1, 1, 1, -1))
    e = np.exp(x)
    expected = np.clip((zeta - gamma) * e / (1 + e.sum()) + gamma, 0, 1)
    np.testing.assert_allclose(ours.numpy().ravel(), expected, rtol=1e-9, atol=1e-12)


def test_a_row_may_give_nothing_to_its_only_key():
    assert float(qf.ClippedSoftmax1(gamma=-0.1).build(GEOMETRY)(torch.full((1, 1, 1, 1), -4.0))) == 0
