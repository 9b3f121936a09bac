"""Softpick: the formula in float64, and what it does with scores below zero."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import quietformer as qf
from quietformer.attention.kernels.row_weights import SOFTPICK_EPSILON
from quietformer.config.attention import HeadGeometry

NORMALIZER = qf.Softpick().build(HeadGeometry(n_heads=1, d_model=4, d_value=4))
rows = hnp.arrays(np.float64, st.integers(1, 12), elements=st.floats(-30, 30))


def weights(x, visible=None):
    scores = torch.from_numpy(np.asarray(x, dtype=np.float64)).view(1, 1, 1, -1)
    return NORMALIZER(scores, visible).numpy().ravel()


@given(rows)
def test_it_is_the_rectified_softmax_of_the_paper(x):
    rise = np.expm1(x)
    expected = np.maximum(rise, 0) / (np.abs(rise).sum() + SOFTPICK_EPSILON)
    # exp(x) - 1 near zero is off by the rounding of 1, and is divided by epsilon at least.
    np.testing.assert_allclose(weights(x), expected, rtol=1e-9, atol=1e-9)


@given(rows, st.integers(1, 5))
def test_hidden_keys_take_no_weight_from_the_others(x, hidden):
    visible = torch.arange(len(x) + hidden).view(1, 1, 1, -1) < len(x)
    padded = np.append(x, np.full(hidden, np.finfo(np.float64).min))
    np.testing.assert_allclose(weights(padded, visible)[: len(x)], weights(x), rtol=1e-12, atol=1e-300)


def test_scores_below_zero_do_nothing():
    assert (weights([-1.0, -0.1, -90.0]) == 0).all()
    assert weights([-5.0, 1.0])[0] == 0
