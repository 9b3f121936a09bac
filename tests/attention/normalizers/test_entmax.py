"""Sparsemax and 1.5-entmax against the package of their authors."""

from __future__ import annotations

import entmax
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import quietformer as qf
from quietformer.config.attention import HeadGeometry

GEOMETRY = HeadGeometry(n_heads=1, d_model=4, d_value=4)
both = pytest.mark.parametrize(
    ("spec", "theirs"),
    [(qf.Sparsemax(), entmax.sparsemax), (qf.Entmax15(), entmax.entmax15)],
    ids=["sparsemax", "entmax15"],
)


@both
@given(seed=st.integers(0, 2**31), keys=st.integers(1, 40), scale=st.sampled_from([0.01, 1.0, 30.0]))
def test_weights_and_gradients_are_those_of_the_package(spec, theirs, seed, keys, scale):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(2, 1, 3, keys, dtype=torch.float64, generator=generator) * scale
    outer = torch.randn(scores.shape, dtype=torch.float64, generator=generator)
    found = []
    for function in (spec.build(GEOMETRY), lambda x: theirs(x, dim=-1)):
        x = scores.clone().requires_grad_()
        weights = function(x)
        found.append((weights.detach(), *torch.autograd.grad(weights, x, outer)))
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-12)


@both
def test_rows_sum_to_one_with_exact_zeros_and_equal_scores_share(spec, theirs):
    normalizer = spec.build(GEOMETRY)
    weights = normalizer(torch.tensor([[[[5.0, 5.0, 1.0, -3e38]]]]))
    torch.testing.assert_close(weights.flatten(), torch.tensor([0.5, 0.5, 0.0, 0.0]))
    assert (weights[..., 2:] == 0).all()
    torch.testing.assert_close(normalizer(torch.zeros(1, 1, 1, 7)), torch.full((1, 1, 1, 7), 1 / 7))


@both
def test_hidden_keys_change_nothing(spec, theirs):
    scores = torch.randn(1, 1, 3, 6, dtype=torch.float64)
    visible = (torch.arange(6) < 4).view(1, 1, 1, 6)
    masked = scores.masked_fill(~visible, torch.finfo(torch.float64).min)
    found = spec.build(GEOMETRY)(masked, visible)
    torch.testing.assert_close(found[..., :4], theirs(scores[..., :4], dim=-1))
    assert (found[..., 4:] == 0).all()
