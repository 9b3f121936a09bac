"""Range estimators: the contract every registered one keeps, and each against its definition in float64."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quietformer.config.quantization import estimators
from quietformer.errors import QuietformerError, SpecError
from quietformer.quant.affine import fake_quantize, qparams
from quietformer.quant.estimators import mse as mse_module
from quietformer.quant.estimators.minmax import MinMax
from quietformer.quant.estimators.mse import MSE
from quietformer.quant.estimators.percentile import Percentile
from quietformer.quant.estimators.running_minmax import RunningMinMax
from quietformer.quant.histogram import FINE_BITS, Histogram

KINDS = sorted(estimators)
ORDERLESS = ["minmax", "mse", "percentile"]
BIN = 2.0**-FINE_BITS
every_kind = pytest.mark.parametrize("kind", KINDS)
both_grids = pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])


def values(kind: str, count: int, seed: int = 0) -> np.ndarray:
    """Data as weights and activations are."""
    rng = np.random.default_rng([seed, count])
    if kind == "normal":
        x = rng.normal(0, 0.02, count)
    elif kind == "heavy_tailed":
        x = rng.standard_t(3, count)
    elif kind == "uniform":
        x = rng.uniform(-1, 1, count)
    elif kind == "one_sided":
        z = rng.normal(0, 1.5, count)
        x = z / (1 + np.exp(-1.702 * z))
    else:
        x = rng.normal(0, 1, count) * np.where(rng.random(count) < 2e-3, 60, 1)
    return x.astype(np.float32)


DATA = ["normal", "heavy_tailed", "uniform", "one_sided", "outliers"]


def estimate(spec, *pieces, bits: int = 8, symmetric: bool = False, axis: int | None = None):
    estimator = spec.build(bits=bits, symmetric=symmetric, axis=axis)
    for piece in pieces:
        estimator.observe(torch.as_tensor(piece))
    return estimator.range()


def errors(x: np.ndarray, lo, hi, *, bits: int, symmetric: bool, axis: int | None = None) -> np.ndarray:
    """Mean squared error that quantizing to the range really leaves, of everything or of each channel."""
    t = torch.from_numpy(x)
    scale, zero = qparams(lo, hi, bits=bits, symmetric=symmetric)
    square = (fake_quantize(t, scale, zero, bits=bits, axis=axis).double() - t.double()).square()
    return square.mean().numpy() if axis is None else square.mean(1).numpy()


# The contract


@every_kind
@both_grids
@pytest.mark.parametrize("bits", [2, 8, 16])
@pytest.mark.parametrize("offset", [-3.0, 0.0, 3.0])
def test_a_range_is_finite_float32_and_holds_zero(kind, symmetric, bits, offset):
    x = torch.from_numpy(values("normal", 600)) + offset
    lo, hi = estimate(estimators[kind](), x, bits=bits, symmetric=symmetric)
    assert lo.shape == hi.shape == ()
    assert lo.dtype is hi.dtype is torch.float32
    assert torch.isfinite(lo)
    assert torch.isfinite(hi)
    assert lo <= 0 <= hi
    assert lo < hi


@every_kind
@both_grids
@pytest.mark.parametrize("bits", [4, 12])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_channel_gets_the_range_it_would_get_alone(kind, symmetric, bits, axis):
    x = (
        torch.from_numpy(values("heavy_tailed", 3 * 4 * 5)).view(3, 4, 5)
        * torch.tensor([1.0, 10.0, 0.1, 1e-3])[:, None]
    )
    lo, hi = estimate(estimators[kind](), x, bits=bits, symmetric=symmetric, axis=axis)
    assert lo.shape == hi.shape == (x.shape[axis],)
    for channel, (low, high) in enumerate(zip(lo, hi, strict=True)):
        alone = x.select(axis, channel).reshape(1, -1)
        expected = estimate(estimators[kind](), alone, bits=bits, symmetric=symmetric, axis=0)
        torch.testing.assert_close((low[None], high[None]), expected, rtol=1e-5, atol=0)


@every_kind
@pytest.mark.parametrize("axis", [None, 0])
def test_without_data_there_is_no_range(kind, axis):
    estimator = estimators[kind]().build(bits=8, symmetric=True, axis=axis)
    estimator.observe(torch.empty(0, 4))
    with pytest.raises(QuietformerError, match="no data"):
        estimator.range()


@every_kind
@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_by_name_and_leaves_no_trace(kind, axis, bad):
    estimator = estimators[kind]().build(bits=8, symmetric=True, axis=axis)
    good = torch.from_numpy(values("normal", 60)).view(3, 20)
    estimator.observe(good)
    before = estimator.range()
    spoilt = good.clone() * 7
    spoilt[1, 3] = bad
    with pytest.raises(QuietformerError, match="values hold NaN or infinity"):
        estimator.observe(spoilt)
    assert estimator.seen == 1
    torch.testing.assert_close(estimator.range(), before, rtol=0, atol=0)


@every_kind
@both_grids
@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("count", [40, 40_000])
def test_nothing_but_zeros_gives_the_empty_range(kind, symmetric, axis, count):
    lo, hi = estimate(estimators[kind](), torch.zeros(2, count // 2), symmetric=symmetric, axis=axis)
    assert not lo.any()
    assert not hi.any()


@every_kind
@both_grids
@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("size", [1e-42, 1e-37, 1e-30, 1e30, 3e38])
@pytest.mark.parametrize("count", [64, 40_000])
def test_tiny_and_huge_values_give_ranges_of_their_size(kind, symmetric, axis, size, count):
    x = (torch.linspace(-0.5, 1.0, count) * size).view(2, -1)
    lo, hi = estimate(estimators[kind](), x, symmetric=symmetric, axis=axis)
    assert torch.isfinite(lo).all()
    assert torch.isfinite(hi).all()
    assert 0.9 * size < float(hi.max()) < 1.1 * size
    assert float(lo.min()) < -0.4 * size


@every_kind
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_are_read_as_the_float32_they_stand_for(kind, dtype):
    x = torch.from_numpy(values("normal", 500)).to(dtype)
    assert estimate(estimators[kind](), x) == estimate(estimators[kind](), x.float())


@every_kind
def test_what_was_seen_is_not_changed_and_may_change_later(kind):
    x = torch.from_numpy(values("normal", 500))
    kept = x.clone()
    estimator = estimators[kind]().build(bits=8, symmetric=False)
    estimator.observe(x)
    before = estimator.range()
    assert torch.equal(x, kept)
    x.mul_(100)
    assert estimator.range() == before


@pytest.mark.parametrize("kind", ORDERLESS)
@both_grids
@pytest.mark.parametrize("count", [3000, 60_000], ids=["few", "many"])
def test_pieces_in_any_order_give_the_range_of_the_whole(kind, symmetric, count):
    x = values("outliers", count) * 10 ** np.linspace(-9, 0, count, dtype=np.float32)
    whole = estimate(estimators[kind](), x, symmetric=symmetric)
    pieces = np.split(x, [7, 1000, 1001, 2500])
    assert estimate(estimators[kind](), *pieces, symmetric=symmetric) == whole
    assert estimate(estimators[kind](), *pieces[::-1], symmetric=symmetric) == whole


@every_kind
@pytest.mark.parametrize("axis", [None, 0])
def test_several_tensors_give_a_range_within_all_they_hold(kind, axis):
    pieces = [values("one_sided", 4000, seed).reshape(4, -1) for seed in range(3)]
    lo, hi = estimate(estimators[kind](), *pieces, axis=axis)
    everything = np.concatenate(pieces)
    spare = 0.07 * (everything.max() - everything.min())  # the least error may be a little beyond
    assert float(lo.min()) >= everything.min() - spare
    assert float(hi.max()) <= everything.max() + spare


def test_specs_refuse_what_makes_no_sense():
    for spec, fields in [(Percentile, {"q": 50}), (Percentile, {"q": 101}), (RunningMinMax, {"momentum": 1.0})]:
        with pytest.raises(SpecError):
            spec(**fields)
    with pytest.raises(SpecError):
        MSE(candidates=1)
    assert estimators.parse("percentile(q=99.9)") == Percentile(q=99.9)


# Each against its definition


@pytest.mark.parametrize("axis", [None, 0])
def test_current_minmax_knows_the_last_tensor_only(axis):
    first, last = (torch.from_numpy(values("normal", 40, seed)).view(4, 10) for seed in range(2))
    lo, hi = estimate(estimators["current_minmax"](), first * 100, last, axis=axis)
    expected = (last.min(), last.max()) if axis is None else (last.amin(1), last.amax(1))
    assert torch.equal(lo, expected[0])
    assert torch.equal(hi, expected[1])


@settings(deadline=None, max_examples=40)
@given(momentum=st.floats(0, 0.99), count=st.integers(1, 6), seed=st.integers(0, 1000))
def test_running_minmax_is_the_exponential_average(momentum, count, seed):
    pieces = [values("normal", 30, seed + i).reshape(3, 10) for i in range(count)]
    low, high = pieces[0].min(1).astype(np.float64), pieces[0].max(1).astype(np.float64)
    for piece in pieces[1:]:
        low = momentum * low + (1 - momentum) * piece.min(1)
        high = momentum * high + (1 - momentum) * piece.max(1)
    lo, hi = estimate(RunningMinMax(momentum=momentum), *pieces, axis=0)
    np.testing.assert_allclose(lo.numpy(), np.minimum(low, 0), rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(hi.numpy(), np.maximum(high, 0), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("data", DATA)
@settings(deadline=None, max_examples=25)
@given(q=st.one_of(st.floats(90, 100), st.sampled_from([99.99, 99.999, 100.0])), seed=st.integers(0, 10**6))
def test_percentiles_equal_numpys_to_the_width_of_a_bin(data, q, seed):
    x = values(data, 5000, seed)
    lo, hi = estimate(Percentile(q=q), *np.split(x, 3 * [1000]))
    expected = np.percentile(x.astype(np.float64), [100 - q, q])
    assert float(lo) == pytest.approx(min(expected[0], 0), rel=BIN, abs=float(np.abs(x).max()) * 2.0**-24)
    assert float(hi) == pytest.approx(max(expected[1], 0), rel=BIN, abs=float(np.abs(x).max()) * 2.0**-24)
    assert x.min() <= float(lo)
    assert float(hi) <= x.max()


def test_the_last_percentile_is_the_largest_value_exactly():
    x = values("heavy_tailed", 5000)
    lo, hi = estimate(Percentile(q=100), x)
    assert (float(lo), float(hi)) == (float(x.min()), float(x.max()))


@pytest.mark.parametrize("q", [75.0, 99.0, 99.9, 99.999, 100.0])
@pytest.mark.parametrize("width", [1, 2, 300])
def test_percentiles_of_channels_are_exact(q, width):
    x = values("heavy_tailed", 7 * width).reshape(7, width)
    lo, hi = estimate(Percentile(q=q), x, axis=0)
    expected = np.percentile(x.astype(np.float64), [100 - q, q], axis=1)
    np.testing.assert_allclose(lo.numpy(), np.minimum(expected[0], 0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(hi.numpy(), np.maximum(expected[1], 0), rtol=1e-5, atol=1e-6)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), powers=st.lists(st.floats(-44, 38), min_size=1, max_size=5))
def test_a_histogram_of_pieces_is_the_histogram_of_all_data(seed, powers):
    pieces = [
        torch.from_numpy(values("normal", 50, seed + i)).mul_(10).clamp_(-1, 1) * 10.0**p for i, p in enumerate(powers)
    ]
    whole, pieced = Histogram(), Histogram()
    everything = torch.cat(pieces)
    whole.add_(everything, float(everything.min()), float(everything.max()))
    for piece in pieces:
        pieced.add_(piece, float(piece.min()), float(piece.max()))
    assert torch.equal(whole.counts, pieced.counts)
    assert (whole.near_zero, whole.top) == (pieced.near_zero, pieced.top)
    assert (whole.minimum, whole.maximum, whole.count) == (pieced.minimum, pieced.maximum, len(everything))


# MSE against an exhaustive search in float64 that shares nothing with ours


def error_of_ranges(x: np.ndarray, lo: np.ndarray, hi: np.ndarray, bits: int) -> np.ndarray:
    """Asymmetric quantization to each of many ranges, straight from the paper's equation."""
    found = []
    for low, high in zip(lo, hi, strict=True):
        scale = (high - low) / (2**bits - 1)
        zero = np.rint(-low / scale)
        found.append(np.square((np.clip(np.rint(x / scale), -zero, 2**bits - 1 - zero)) * scale - x).mean())
    return np.array(found)


def least_symmetric(x: np.ndarray, bits: int, candidates: int) -> float:
    half, largest = 2 ** (bits - 1), np.abs(x).max()
    scales = largest * np.arange(1, candidates + 1) / candidates / (half - 1)
    return min(np.square(np.clip(np.rint(x / scale), -half, half - 1) * scale - x).mean() for scale in scales)


def least_asymmetric(x: np.ndarray, bits: int, side: int) -> float:
    """A grid of both ends, then a finer one around its best."""
    low, high = min(x.min(), 0.0), max(x.max(), 0.0)
    shares = np.arange(side + 1) / side
    lows, highs, least = low * shares, high * shares, np.inf
    for _ in range(2):
        lo, hi = (grid.ravel() for grid in np.meshgrid(lows, highs))
        wide = hi - lo > 0
        lo, hi = lo[wide], hi[wide]
        found = error_of_ranges(x, lo, hi, bits)
        best = found.argmin()
        least = min(least, found[best])
        steps = np.linspace(-1, 1, side // 2 + 1) / side
        lows = np.minimum(lo[best] - low * steps, 0)
        highs = np.maximum(hi[best] + high * steps, 0)
    return float(least)


FEW, MANY = 3000, 20_000


@functools.cache
def exhaustive(data: str, count: int, seed: int, bits: int, symmetric: bool) -> float:
    x = values(data, count, seed).astype(np.float64)
    if symmetric:
        return least_symmetric(x, bits, candidates=2000 if count <= FEW else 600)
    return least_asymmetric(x, bits, side=50 if count <= FEW else 24)


def test_few_values_are_searched_directly_and_many_by_histogram():
    """So that the tests below reach both."""
    assert FEW <= mse_module.FEW < MANY


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("bits", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("count", [FEW, MANY], ids=["few", "many"])
@both_grids
def test_the_least_error_comes_within_a_hundredth_of_an_exhaustive_search(data, bits, count, symmetric):
    x = values(data, count)
    ours = errors(x, *estimate(MSE(), x, bits=bits, symmetric=symmetric), bits=bits, symmetric=symmetric)
    assert ours <= 1.01 * exhaustive(data, count, 0, bits, symmetric)


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("bits", [2, 3, 4, 6, 8])
@both_grids
def test_channels_come_within_a_hundredth_of_an_exhaustive_search_of_each(data, bits, symmetric):
    x = np.stack([values(data, 768, seed) for seed in range(4)])
    lo, hi = estimate(MSE(), x, bits=bits, symmetric=symmetric, axis=0)
    ours = errors(x, lo, hi, bits=bits, symmetric=symmetric, axis=0)
    least = np.array([exhaustive(data, 768, seed, bits, symmetric) for seed in range(4)])
    assert (ours <= 1.01 * least).all(), ours / least - 1


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("bits", [2, 5, 8, 9, 12, 16])
@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("count", [FEW, MANY], ids=["few", "many"])
@both_grids
def test_the_least_error_is_no_more_than_that_of_the_full_range(data, bits, axis, count, symmetric):
    x = values(data, count).reshape(2, -1)
    settings_ = {"bits": bits, "symmetric": symmetric, "axis": axis}
    ours, full = (errors(x, *estimate(spec, x, **settings_), **settings_) for spec in (MSE(), MinMax()))
    assert (ours <= full * 1.01).all()  # a histogram knows the error to less than that


@pytest.mark.parametrize("bits", [9, 10])
@pytest.mark.parametrize("axis", [None, 0])
@both_grids
def test_fine_grids_still_leave_far_outliers_out(bits, axis, symmetric):
    x = values("normal", 2 * MANY).reshape(2, -1)
    x[:, 0] = x.std() * 300
    settings_ = {"bits": bits, "symmetric": symmetric, "axis": axis}
    ours, full = (errors(x, *estimate(spec, x, **settings_), **settings_) for spec in (MSE(), MinMax()))
    assert (ours < full).all()


@both_grids
@pytest.mark.parametrize("value", [1.0, -0.37])
def test_a_constant_is_kept_exactly(symmetric, value):
    """A LayerNorm scale that was never trained."""
    x = np.full(768, value, np.float32)
    settings_ = {"bits": 8, "symmetric": symmetric}
    assert errors(x, *estimate(MSE(), x, **settings_), **settings_) <= (value * 1e-6) ** 2
