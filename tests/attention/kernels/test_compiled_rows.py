"""Rows of softmax and clipping, compiled and by torch's operators, against the formula in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quietformer.attention.kernels.compiled_rows import Bounds, gradients_, weights_

pytestmark = pytest.mark.usefixtures("compiled_and_not")
LOWEST = torch.finfo(torch.float32).min


def formula(scores, low, high):
    """In float64, by autograd."""
    probabilities = torch.softmax(scores.double(), -1)
    return torch.clamp(probabilities - low, min=0).clamp(max=torch.inf if high is None else high)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 70)),
    spread=st.sampled_from([0.0, 1.0, 30.0]),
    low=st.sampled_from([0.0, 0.01, 0.2, 0.9]),
    high=st.sampled_from([None, 0.3]),
    by_row=st.booleans(),
    hidden=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_rows_are_the_formula_and_so_is_their_gradient(shape, spread, low, high, by_row, hidden, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(shape, generator=generator) * spread
    if hidden:
        scores = torch.where(torch.rand(shape, generator=generator) > 0.5, scores, LOWEST)
    if by_row:
        low = torch.rand(1, shape[1], 1, generator=generator) * low
        high = None if high is None else high + low
    exact = scores.double().requires_grad_()
    expected = formula(exact, low, high)
    outer = torch.randn(shape, generator=generator)
    (slope,) = torch.autograd.grad(expected, exact, outer.double())

    found = scores.clone()
    weights_(found, Bounds(low, high))
    torch.testing.assert_close(found.double(), expected.detach(), rtol=1e-5, atol=3e-7)

    used, filled, grad = scores.clone(), torch.empty(shape), outer.clone()
    gradients_(used, filled, grad, Bounds(low, high))
    torch.testing.assert_close(filled, found, rtol=1e-6, atol=1e-7)
    near = (torch.softmax(exact.detach(), -1) - low).abs() < 1e-6  # there rounding decides whether a weight is clipped
    if high is not None:
        near |= (torch.softmax(exact.detach(), -1) - low - high).abs() < 1e-6
    if not near.any():
        torch.testing.assert_close(grad.double(), slope, rtol=1e-4, atol=3e-6)


@pytest.mark.parametrize("threads", [1, 3])
def test_many_rows_are_shared_among_threads(threads):
    scores, outer = torch.randn(4, 64, 777), torch.randn(4, 64, 777)
    exact = scores.double().requires_grad_()
    expected = formula(exact, 0.002, None)
    (slope,) = torch.autograd.grad(expected, exact, outer.double())
    usual = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        gradients_(scores, filled := torch.empty_like(scores), outer, Bounds(0.002, None))
    finally:
        torch.set_num_threads(usual)
    torch.testing.assert_close(filled.double(), expected.detach(), rtol=1e-5, atol=3e-7)
    assert float(((outer.double() - slope).abs() < 1e-6).double().mean()) > 0.999  # where rounding decides about a clip


@pytest.mark.parametrize("n_keys", [1, 7, 8, 16, 33])
def test_hidden_keys_get_exactly_nothing(n_keys):
    scores = torch.randn(2, 3, n_keys)
    scores[..., ::2] = LOWEST
    hidden = scores == LOWEST
    blind = hidden.all(-1, keepdim=True)
    weights_(scores, Bounds(0.0, None))
    assert (scores[hidden & ~blind.expand_as(hidden)] == 0).all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", [0, 5, 18])
def test_what_is_not_a_number_is_not_hidden(bad, place):
    scores = torch.randn(1, 2, 19)
    scores[0, 0, place] = bad
    used, filled, grad = scores.clone(), torch.empty(1, 2, 19), torch.randn(1, 2, 19)
    weights_(scores, Bounds(0.01, None))
    assert scores[0, 0].isnan().any()
    assert scores[0, 1].isfinite().all()
    gradients_(used, filled, grad, Bounds(0.01, None))
    assert grad[0, 0].isnan().any()
    assert grad[0, 1].isfinite().all()


def test_large_and_small_scores_overflow_nowhere():
    scores = torch.tensor([[[3e38, -3e38, 0.0, 3e38], [-3e38, -3e38, -3e38, -3e38], [88.0, -88.0, 100.0, 99.0]]])
    expected = torch.softmax(scores.double(), -1)
    weights_(scores, Bounds(0.0, None))
    torch.testing.assert_close(scores.double(), expected, rtol=1e-5, atol=1e-37)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize(
    "low", [torch.tensor(0.01), torch.linspace(0, 0.02, 5).view(1, 5, 1)], ids=["number", "by_row"]
)
def test_they_are_torch_operators(low, upper):
    """Schema, fake tensors, functionalization and autograd registration, as torch itself checks them."""
    scores, weights, grad = (torch.randn(2, 5, 19) for _ in range(3))
    high = low + 0.2 if upper else None
    torch.library.opcheck(torch.ops.quietformer.clipped_rows_.default, (scores, low, high))
    torch.library.opcheck(torch.ops.quietformer.clipped_rows_backward_.default, (scores, weights, grad, low, high))


def test_a_compiled_graph_keeps_the_operators():
    """No graph break, and the same bits as without torch.compile."""

    def weights_of(scores):
        weights_(scores, Bounds(0.01, 0.3))
        return scores * 2

    scores = torch.randn(2, 5, 19)
    expected = weights_of(scores.clone())
    assert torch.equal(torch.compile(weights_of, fullgraph=True, backend="aot_eager")(scores.clone()), expected)
