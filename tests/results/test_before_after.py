"""Before and after: a table of what both sides measured, and words that claim no more than was won."""

from __future__ import annotations

import pytest

from quietformer.results.before_after import RealSide, Side, beside_balancing, comparison, verdict_on
from quietformer.results.inspect import InspectReport
from quietformer.results.quality import SCALES, ByGranularity, Metrics, Spread, Spreads, Yardstick


def inspected(*reaches):
    sites = [
        {
            "site": "ffn_output", "layer": layer, "infinity_norm": reach, "kurtosis": reach * 2, "std": 1.0, "min": -reach,
            "max": 1.0, "percentiles": {}, "outliers": 0, "outlier_share": 0.0, "int8_bits_left": 8.0,
        }
        for layer, reach in enumerate(reaches)
    ]  # fmt: skip
    return InspectReport.model_validate(
        {
            "model": {"name": "m", "class_name": "M", "parameters": 1},
            "data": {},
            "headline": {"infinity_site": "ffn_output", "infinity_norm": 1.0, "kurtosis_sites": [], "kurtosis": None},
            "sites": sites,
            "outliers": [],
            "heads": [],
            "head_measures": {},
            "pictures": {"sequences": [], "attention": []},
            "verdict": {"severity": "quiet", "sentence": "", "claims": [], "next_steps": [], "ranked": []},
        }
    )


def simulated(value, metric="cosine"):
    spread = Spreads(**{metric: Spread(mean=value, std=0.0)})
    return ByGranularity[Spreads](per_tensor=spread, per_channel=spread)


def side(reach, value, real=True):
    found = (
        RealSide(per_tensor=Metrics(cosine=value), bytes={"fp32": 4_000_000, "int8": 1_000_000}) if real else RealSide()
    )
    return Side(inspect=inspected(reach), fp32=Metrics(cosine=1.0), simulated=simulated(value), real=found)


def yardstick(better="higher", metric="cosine"):
    return Yardstick(task="embedding", primary=metric, better=better, scale=SCALES[better])


def test_the_table_has_what_was_measured_and_nothing_else():
    rows = {row.what: row for row in comparison(side(100.0, 0.2), side(5.0, 0.9))}
    assert (rows["largest FFN output"].before, rows["largest FFN output"].after) == (100.0, 5.0)
    assert rows["real INT8, per-tensor weights: cosine"].after == 0.9
    assert "real INT8, per-channel weights: cosine" not in rows  # was not measured on either side
    assert rows["INT8 model, MB"].after == 1.0
    bare = comparison(side(100.0, 0.2, real=False), side(5.0, 0.9, real=False))
    assert not any("real" in row.what or "MB" in row.what for row in bare)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (0.8, 0.999, "costs next to nothing"),
        (0.8, 0.99, "costs a little"),
        (0.8, 0.95, "75% of what INT8 took is back"),
        (0.94, 0.95, "INT8 still costs it quality"),
        (0.2, 0.6, "INT8 still breaks it"),
        (None, 0.95, "Nearly all of what INT8 took is back"),
    ],
)
def test_the_verdict_claims_no_more_than_was_won(before, after, told):
    assert told in verdict_on(side(100.0, before, real=False), side(5.0, after, real=False), yardstick())


def test_extremes_of_a_model_without_the_tensor_are_no_numbers():
    assert inspected().extremes() == (None, None)


@pytest.mark.parametrize(
    ("better", "untrained", "trained", "told"),
    [("higher", 0.99, 0.98, True), ("higher", 0.98, 0.99, False), ("lower", 10.0, 12.0, True), ("lower", 12.0, 10.0, False),
     ("higher", 0.99, None, True), ("higher", None, 0.9, False), ("higher", 0.9, 0.9, False)],
)  # fmt: skip
def test_a_run_that_does_less_than_balancing_says_so(better, untrained, trained, told):
    metric = "cosine" if better == "higher" else "perplexity"
    after = Side(inspect=inspected(), simulated=simulated(trained, metric))
    asked = yardstick(better, metric)
    assert ("more steps" in beside_balancing(simulated(untrained, metric), after, asked)) == told
    assert beside_balancing(None, after, asked) == ""
