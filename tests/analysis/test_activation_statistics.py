"""Metrics against float64 references on the whole data, for any split into batches, padded or not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quietformer.analysis.activation_statistics import RunningMetrics, sequence_metrics
from quietformer.analysis.inspection import Inspection
from quietformer.quant.histogram import histogram, histogram_quantile

seeds = st.integers(0, 2**31)


def spiky(seed: int, *shape: int) -> np.ndarray:
    """Values as activations have them: an offset, a spread, a few far outliers."""
    rng = np.random.default_rng(seed)
    x = rng.normal(rng.uniform(-3, 3), 10 ** rng.uniform(-3, 2), shape)
    x.flat[rng.integers(0, x.size, max(1, x.size // 200))] *= 10 ** rng.uniform(0, 2.5)
    return x.astype(np.float32)


def reference(x: np.ndarray) -> dict[str, float]:
    x = x.astype(np.float64)
    centred = x - x.mean()
    std = np.sqrt((centred**2).mean())
    return {
        "kurtosis": (centred**4).mean() / std**4,
        "infinity": np.abs(x).max(),
        "outliers": int((np.abs(centred) > 6 * std).sum()),
    }


@settings(deadline=None)
@given(
    seed=seeds,
    sequences=st.integers(1, 6),
    tokens=st.integers(2, 9),
    width=st.integers(2, 24),
    split=st.integers(1, 6),
    padded=st.booleans(),
)
def test_figures_equal_the_reference_for_any_split_and_padding(seed, sequences, tokens, width, split, padded):
    x = spiky(seed, sequences, tokens, width)
    lengths = (
        np.random.default_rng(seed + 1).integers(1, tokens + 1, sequences) if padded else np.full(sequences, tokens)
    )
    inspection = Inspection(picture_sequences=0)
    for start in range(0, sequences, split):
        rows = slice(start, start + split)
        mask = torch.from_numpy((np.arange(tokens)[None] < lengths[rows, None]).astype(np.int64))
        inspection.begin({"input_ids": torch.zeros_like(mask), "attention_mask": mask})
        inspection.on_site("ffn_output", 0, torch.from_numpy(x[rows]))
    ours = inspection.sites[("ffn_output", 0)].tensor_metrics("ffn_output", 0).model_dump()
    real = [x[row, : lengths[row]] for row in range(sequences)]
    each = [reference(values) for values in real]
    everything = np.concatenate([values.ravel() for values in real]).astype(np.float64)
    assert ours["kurtosis"] == pytest.approx(np.mean([one["kurtosis"] for one in each]), rel=1e-6)
    assert ours["infinity_norm"] == pytest.approx(np.mean([one["infinity"] for one in each]), rel=1e-6)
    assert ours["outliers"] == sum(one["outliers"] for one in each)
    assert ours["std"] == pytest.approx(everything.std(), rel=1e-6)
    assert ours["min"] == everything.min()
    assert ours["max"] == everything.max()


@settings(deadline=None)
@given(seed=seeds, q=st.floats(0.01, 99.99))
def test_percentiles_come_within_a_bin(seed, q):
    x = np.sort(spiky(seed, 3000))
    value = histogram_quantile(histogram(torch.from_numpy(x)), q / 100)
    # The value at that rank, or one of its neighbours, to the width of a bin.
    rank = q / 100 * len(x)
    near = x[max(0, int(rank) - 2) : int(rank) + 2]
    assert np.min(np.abs(near - value) / np.maximum(np.abs(near), 1e-30)) < 1 / 64


@given(seed=seeds)
def test_histograms_of_parts_add_up_to_that_of_the_whole(seed):
    x = torch.from_numpy(spiky(seed, 500))
    assert torch.equal(histogram(x[:123]) + histogram(x[123:]), histogram(x))
    assert histogram(x).sum() == 500


def test_a_normal_distribution_has_kurtosis_three_and_constants_have_none():
    x = torch.randn(200_000, generator=torch.Generator().manual_seed(0))
    assert sequence_metrics(x).kurtosis == pytest.approx(3.0, abs=0.05)
    assert sequence_metrics(x * 0.02).kurtosis == pytest.approx(sequence_metrics(x).kurtosis, rel=1e-6)
    assert sequence_metrics(torch.full((10,), 0.3)).kurtosis is None


def test_bits_left_are_what_quantizing_leaves():
    """Count the INT8 levels that the middle 99.8 % of the values really fall on."""
    x = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    x[0] = 180.0
    site = RunningMetrics()
    site.add(x)
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    middle = x[(x > x.quantile(0.001)) & (x < x.quantile(0.999))]
    levels = torch.unique(torch.round((middle - low) / ((high - low) / 255)))
    assert 2 ** site.int8_bits_left() == pytest.approx(len(levels), abs=2)
