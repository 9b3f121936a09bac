"""Sigmoid attention: the formula in float64, its bias, and when a cache would change it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.special import expit

import quietformer as qf
from quietformer.config.attention import HeadGeometry
from quietformer.errors import QuietformerError

GEOMETRY = HeadGeometry(n_heads=1, d_model=4, d_value=4)
rows = hnp.arrays(np.float64, st.integers(1, 12), elements=st.floats(-30, 30))


@given(rows, st.one_of(st.none(), st.floats(-9, 9)))
def test_it_is_the_sigmoid_of_score_and_bias(x, bias):
    ours = qf.Sigmoid(bias=bias).build(GEOMETRY)(torch.from_numpy(x).view(1, 1, 1, -1)).numpy().ravel()
    np.testing.assert_allclose(ours, expit(x + (-np.log(len(x)) if bias is None else bias)), rtol=1e-12)


def test_the_bias_counts_the_keys_that_a_row_sees():
    scores, visible = torch.randn(1, 2, 5, 5), torch.ones(5, 5, dtype=torch.bool).tril()[None, None]
    by_row, whole = (qf.Sigmoid(keys=keys).build(GEOMETRY)(scores, visible) for keys in ("row", "sequence"))
    for t in range(5):
        seen = scores[:, :, t, : t + 1]
        torch.testing.assert_close(by_row[:, :, t, : t + 1], torch.sigmoid(seen - np.log(t + 1)))
        torch.testing.assert_close(whole[:, :, t, : t + 1], torch.sigmoid(seen - np.log(5)))


def test_only_a_bias_of_the_whole_sequence_refuses_a_cache():
    qf.Sigmoid().build(GEOMETRY).check_cache()
    qf.Sigmoid(bias=-3.0, keys="sequence").build(GEOMETRY).check_cache()
    with pytest.raises(QuietformerError, match="use keys='row' or a fixed bias"):
        qf.Sigmoid(keys="sequence").build(GEOMETRY).check_cache()
