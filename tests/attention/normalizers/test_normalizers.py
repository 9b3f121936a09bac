"""Every registered normalizer keeps the same contract; each equals its formula in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import quietformer as qf
from quietformer.attention.normalizers.clipped_softmax import count_keys
from quietformer.config.attention import HeadGeometry, normalizers

GEOMETRY = HeadGeometry(n_heads=3, d_model=12, d_value=4)
LOWEST = torch.finfo(torch.float32).min
EXAMPLES = {name: normalizers[name]() for name in normalizers} | {
    "clipped_softmax(gamma,zeta)": qf.ClippedSoftmax(gamma=-0.05, zeta=1.1),
    "clipped_softmax(row)": qf.ClippedSoftmax(alpha=0.7, keys="row"),
    "learned_sink(init)": qf.LearnedSink(init=-1.5),
}
every = pytest.mark.parametrize("spec", EXAMPLES.values(), ids=EXAMPLES)

rows = hnp.arrays(np.float64, st.integers(1, 12), elements=st.floats(-30, 30))
gammas = st.floats(-0.5, 0.0)
zetas = st.floats(1.0, 1.5)


def masked_scores(dtype=torch.float32):
    """Scores with one key hidden everywhere, one row with no visible key, and the mask."""
    scores = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)).to(dtype) * 3
    visible = torch.ones(2, 1, 4, 5, dtype=torch.bool)
    visible[..., 4] = False
    visible[1, :, 2] = False
    return scores.masked_fill(~visible, torch.finfo(dtype).min), visible


@every
def test_masked_keys_get_exactly_no_weight(spec):
    scores, visible = masked_scores()
    weights = spec.build(GEOMETRY)(scores, visible)
    assert (weights[~visible.expand_as(weights)] == 0).all()
    assert weights.isfinite().all()
    assert (weights >= 0).all()
    assert (weights <= 1).all()


@every
def test_a_row_without_visible_keys_is_zero_and_passes_no_nan_back(spec):
    scores, visible = masked_scores()
    scores.requires_grad_()
    weights = spec.build(GEOMETRY)(scores, visible)
    assert (weights[1, :, 2] == 0).all()
    weights.square().sum().backward()
    assert scores.grad.isfinite().all()
    assert (scores.grad[1, :, 2] == 0).all()


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(spec, dtype):
    scores, visible = masked_scores(dtype)
    normalizer = spec.build(GEOMETRY)
    weights = normalizer(scores, visible)
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights, normalizer(scores.float(), visible), rtol=0, atol=0)


@every
def test_gradients_are_those_of_the_formula(spec):
    normalizer = spec.build(GEOMETRY).double()
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(2, 3, 2, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    visible = torch.ones(2, 1, 2, 4, dtype=torch.bool)
    visible[..., 3] = False
    parameters = tuple(normalizer.parameters())
    assert torch.autograd.gradcheck(lambda x, *_: normalizer(x, visible), (scores, *parameters))
    assert torch.autograd.gradcheck(lambda x, *_: normalizer(x), (scores, *parameters))


@every
def test_scores_of_any_size_give_finite_weights(spec):
    scores = torch.tensor([[[[1e4, -1e4, 0.0]], [[3e38, 1.0, 2.0]], [[-3e38, -3e38, -3e38]]]])
    assert spec.build(GEOMETRY)(scores).isfinite().all()


def reference_softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


@given(rows)
def test_softmax1_is_exp_over_one_plus_sum(x):
    ours = qf.Softmax1().build(GEOMETRY)(torch.from_numpy(x).view(1, 1, 1, -1)).numpy().ravel()
    # Multiply numerator and denominator by exp(-m) so that the reference does not overflow either.
    m = max(x.max(), 0.0)
    np.testing.assert_allclose(ours, np.exp(x - m) / (np.exp(-m) + np.exp(x - m).sum()), rtol=1e-12, atol=1e-300)


@given(rows, st.floats(-20, 20))
def test_a_sink_is_one_more_key_without_a_value(x, logit):
    normalizer = qf.LearnedSink(init=logit).build(HeadGeometry(1, 4, 4)).double()
    with torch.no_grad():
        normalizer.logit.fill_(logit)
        ours = normalizer(torch.from_numpy(x).view(1, 1, 1, -1)).numpy().ravel()
    np.testing.assert_allclose(ours, reference_softmax(np.append(x, logit))[:-1], rtol=1e-12, atol=1e-300)


@given(rows, gammas, zetas)
def test_clipped_softmax_has_exact_zeros_and_ones_where_the_formula_says(x, gamma, zeta):
    p = reference_softmax(x)
    ours = (
        qf.ClippedSoftmax(gamma=gamma, zeta=zeta).build(GEOMETRY)(torch.from_numpy(x).view(1, 1, 1, -1)).numpy().ravel()
    )
    np.testing.assert_allclose(ours, np.clip((zeta - gamma) * p + gamma, 0, 1), rtol=1e-9, atol=1e-12)
    width = 1e-12  # closer to a threshold than this, rounding decides
    zero, one = -gamma / (zeta - gamma), (1 - gamma) / (zeta - gamma)
    assert (ours[p < zero - width] == 0).all()
    assert (ours[p > zero + width] > 0).all()
    assert (ours[p > one + width] == 1).all()
    assert (ours[p < one - width] < 1).all()


@given(rows)
def test_without_stretch_clipped_softmax_is_softmax_to_the_bit(x):
    scores = torch.from_numpy(x).float().view(1, 1, 1, -1)
    clipped = qf.ClippedSoftmax(gamma=0.0, zeta=1.0).build(GEOMETRY)(scores)
    assert torch.equal(clipped, qf.Softmax().build(GEOMETRY)(scores))


def test_clipped_weights_pass_no_gradient():
    scores = torch.tensor([[[[8.0, 0.0, 0.1, -0.1]]]], dtype=torch.float64, requires_grad=True)
    weights = qf.ClippedSoftmax(gamma=-0.1, zeta=1.1).build(GEOMETRY)(scores)
    assert weights.tolist() == [[[[1.0, 0.0, 0.0, 0.0]]]]
    weights.sum().backward()
    assert (scores.grad == 0).all()


@pytest.mark.parametrize("alpha", [0.5, 2.0, 4.0])
def test_alpha_counts_the_real_keys_of_the_sequence(alpha):
    scores, visible = torch.randn(1, 1, 3, 6), torch.ones(1, 1, 3, 6, dtype=torch.bool)
    visible[..., 4:] = False  # padding
    padded = qf.ClippedSoftmax(alpha=alpha).build(GEOMETRY)(scores.masked_fill(~visible, LOWEST), visible)
    fixed = qf.ClippedSoftmax(gamma=-alpha / 4).build(GEOMETRY)(scores[..., :4])
    torch.testing.assert_close(padded[..., :4], fixed)


def test_alpha_by_row_clips_each_causal_row_like_a_sequence_of_its_own():
    scores, visible = torch.randn(1, 2, 5, 5), torch.ones(5, 5, dtype=torch.bool).tril()[None, None]
    ours = qf.ClippedSoftmax(alpha=1.5, keys="row").build(GEOMETRY)(scores.masked_fill(~visible, LOWEST), visible)
    for t in range(5):
        alone = qf.ClippedSoftmax(gamma=-1.5 / (t + 1)).build(GEOMETRY)(scores[:, :, t : t + 1, : t + 1])
        torch.testing.assert_close(ours[:, :, t : t + 1, : t + 1], alone)


def test_uniform_rows_die_just_above_alpha_one():
    """1/T <= -gamma / (1 - gamma) from alpha = T / (T - 1) on: the trap of a near-uniform start."""
    scores, threshold = torch.zeros(1, 1, 1, 16), 16 / 15
    assert (qf.ClippedSoftmax(alpha=threshold + 1e-3).build(GEOMETRY)(scores) == 0).all()
    assert (qf.ClippedSoftmax(alpha=threshold - 1e-3).build(GEOMETRY)(scores) > 0).all()


def test_keys_nobody_sees_do_not_count():
    visible = torch.ones(2, 1, 3, 5, dtype=torch.bool).tril()
    visible[1, ..., 0] = False
    assert count_keys(visible, "sequence").flatten().tolist() == [3, 2]
    assert count_keys(visible, "row").squeeze().tolist() == [[1, 2, 3], [0, 1, 2]]


def test_warmup_raises_gamma_from_zero_and_stays_in_the_state():
    spec = qf.ClippedSoftmax(gamma=-0.4, warmup_steps=4)
    normalizer, scores = spec.build(GEOMETRY), torch.randn(1, 1, 2, 6)
    for step in range(7):
        now = qf.ClippedSoftmax(gamma=-0.4 * min(step / 4, 1.0)).build(GEOMETRY)
        torch.testing.assert_close(normalizer(scores), now(scores))
        normalizer.advance_()
    restored = spec.build(GEOMETRY)
    restored.load_state_dict(normalizer.state_dict())
    assert restored.step.item() == 7


def test_clipped_causal_is_clipped_by_row_but_for_rows_that_see_one_key():
    scores, visible = (
        torch.randn(2, 3, 5, 5, dtype=torch.float64),
        torch.ones(5, 5).tril().bool().expand(2, 1, 5, 5).clone(),
    )
    visible[1, :, 3] = torch.tensor([False, True, False, False, False])  # one key, and not its own
    scores = scores.masked_fill(~visible, torch.finfo(torch.float64).min)
    ours = normalizers.parse("clipped_causal(alpha=0.7)").build(GEOMETRY)(scores, visible)
    clipped = qf.ClippedSoftmax(alpha=0.7, keys="row").build(GEOMETRY)(scores, visible)
    lone = (visible.sum(-1) == 1).expand(2, 3, 5)
    assert lone.sum() == 9
    assert (clipped[lone].sum(-1) == 1).all()
    assert (ours[lone] == 0).all()
    assert torch.equal(ours[~lone], clipped[~lone])


def test_clipped_causal_gives_a_single_key_nothing_without_a_mask_too():
    normalizer = normalizers.parse("clipped_causal").build(GEOMETRY)
    assert (normalizer(torch.randn(1, 3, 2, 1)) == 0).all()
