"""The table of a study: means and deviations over seeds, what quantization does in words, failures beside."""

from __future__ import annotations

import statistics

import pytest

from quietformer.config.study import Measures, Study
from quietformer.results import numbers
from quietformer.results.inspect import Headline
from quietformer.results.quality import Metrics, Spread, Spreads
from quietformer.results.study_table import columns, failures, legend
from quietformer.results.trial import Baselines, CurvePoint, RealInt8, TrialResult, TrialRun
from quietformer.study.rows import in_words, study_rows


def study(**fields):
    return Study(**({"recipe": "r", "grid": {"variant": ["vanilla", "gated"]}, "seeds": (0, 1)} | fields))


def outliers(infinity_norm, kurtosis=3.0):
    return Headline(infinity_site="ffn_output", infinity_norm=infinity_norm, kurtosis_sites=[], kurtosis=kurtosis)


def result(variant, seed, fp32, quantized, *, metric="perplexity", **more):
    fields = {
        "attention": "softmax()", "parameters": 100, "steps": 10, "task": "causal", "primary": metric, "better": "lower",
        "fp32": Metrics(**{metric: fp32}),
        "quantized": {bits: Spreads(**{metric: Spread(mean=value, std=0.1)}) for bits, value in quantized.items()},
        "outliers": outliers(10.0 + seed), "curve": [CurvePoint(step=1, dead_rows=0.25)],
        "baselines": Baselines(bigram_perplexity=40.0), "seconds": 60.0,
    } | more  # fmt: skip
    return TrialRun(name=f"{variant},seed={seed}", at={"variant": variant}, seed=seed, result=TrialResult(**fields))


def failed(variant, seed, why):
    return TrialRun(name=f"{variant},seed={seed}", at={"variant": variant}, seed=seed, failed=why)


def cells(rows, row, metric="perplexity"):
    return {title: cell(row) for title, cell in columns(rows, metric)}


def words(rows, metric="perplexity", better="lower"):
    return in_words(rows, metric, better)


RESULTS = [
    result("vanilla", 0, 20.0, {"w8a8": 40.0}),
    result("vanilla", 1, 22.0, {"w8a8": 50.0}),
    result("gated", 0, 21.0, {"w8a8": 21.0}),
    result("gated", 1, 21.5, {"w8a8": 21.6}),
]


def test_a_row_has_mean_and_deviation_over_seeds():
    rows = study_rows(study(), RESULTS)
    assert [row.at["variant"] for row in rows] == ["vanilla", "gated"]
    for key, values in (("fp32", [20.0, 22.0]), ("quantized", [40.0, 50.0]), ("infinity_norm", [10.0, 11.0])):
        assert rows[0].spread(key) == Spread(mean=statistics.fmean(values), std=statistics.stdev(values))
    assert rows[0].runs == 2


def test_the_sentence_says_what_breaks_and_what_does_not():
    rows = study_rows(study(), RESULTS)
    assert [row.effect("lower") for row in rows] == ["broken", "none"]
    sentence = words(rows)
    assert "W8A8 breaks: vanilla (21.00 -> 45.00)" in sentence
    assert "costs next to nothing: gated (21.25 -> 21.30)" in sentence


def test_a_failed_run_is_said_and_the_others_are_counted():
    lost = failed("gated", 1, "the loss is not finite")
    rows = study_rows(study(), [*RESULTS[:3], lost])
    assert rows[1].runs == 1
    assert rows[1].failed == ["seed 1: the loss is not finite"]
    assert rows[1].fp32.mean == 21.0
    assert "failed: the loss is not finite" in lost.in_one_line()


def test_a_point_without_a_run_has_no_values():
    lost = [failed("gated", seed, "no disk") for seed in (0, 1)]
    rows = study_rows(study(), [*RESULTS[:2], *lost])
    assert rows[1].fp32 is None
    assert rows[1].effect("lower") == "unknown"
    shown = cells(rows, rows[1])
    assert shown["perplexity"] == "-"
    assert shown["runs"] == "0 (2 failed)"
    assert words(study_rows(study(), lost), "", None) == "No run finished."


def test_a_model_that_gives_no_number_any_more_is_broken():
    rows = study_rows(study(), [result("vanilla", 0, 20.0, {"w8a8": None})])
    assert rows[0].effect("lower") == "broken"
    assert rows[0].text("quantized", "perplexity") == "broken"


def test_a_graph_that_cannot_be_exported_is_no_broken_model():
    exported = result("vanilla", 0, 20.0, {"w8a8": 21.0}, real=RealInt8(metrics=Metrics(perplexity=21.5)))
    refused = result("vanilla", 1, 20.0, {"w8a8": 21.0}, real=RealInt8(error="no such operator"))
    (row,) = study_rows(study(grid={"variant": ["vanilla"]}), [exported, refused])
    assert row.real.mean == 21.5
    assert row.not_exported == ["seed 1: no such operator"]


def test_one_run_has_no_deviation_to_show():
    (row,) = study_rows(study(grid={"variant": ["vanilla"]}), [RESULTS[0]])
    assert cells([row], row)["perplexity"] == "20.00"


def test_a_run_without_a_largest_value_is_told_all_the_same():
    for found in (outliers(None), None):
        assert "largest" not in result("vanilla", 0, 20.0, {"w8a8": 21.0}, outliers=found).in_one_line()


def test_bits_are_rows_of_the_same_runs():
    asked = study(grid={"variant": ["vanilla"], "bits": ["w8a8", "w4a8"]})
    rows = study_rows(asked, [result("vanilla", 0, 20.0, {"w8a8": 21.0, "w4a8": 99.0})])
    assert [(row.at["bits"], row.quantized.mean) for row in rows] == [("w8a8", 21.0), ("w4a8", 99.0)]
    both = study(grid={"variant": ["vanilla"]}, measures=Measures(bits=("w8a8", "w4a8")))
    rows = study_rows(both, [result("vanilla", 0, 20.0, {"w8a8": 21.0, "w4a8": 99.0})])
    assert [cells(rows, row)["bits"] for row in rows] == ["W8A8", "W4A8"]


@pytest.mark.parametrize(
    ("mean", "std", "metric", "text"),
    [
        (0.5, 0.25, "top1", "50.00 ± 25.00"),
        (0.9987, 0.0004, "cosine", "0.9987 ± 0.0004"),
        (12345.6, 1.0, "perplexity", "12,346 ± 1"),
        (None, None, "perplexity", "broken"),
    ],
)
def test_numbers_are_shown_as_people_read_them(mean, std, metric, text):
    assert numbers.mean_and_std(mean, std, metric, spread=True) == text


@pytest.mark.parametrize(
    ("before", "after", "metric", "text"),
    [
        (0.8, 0.785, "top1", "−1.5 points"),
        (0.8, 0.8004, "top1", "same"),
        (20.0, 64.0, "perplexity", "× 3.2"),
        (20.0, 40000.0, "perplexity", "× 2,000"),
        (20.0, 21.7, "perplexity", "+8.5%"),
        (20.0, 20.001, "perplexity", "same"),
        (20.0, None, "perplexity", "no number"),
    ],
)
def test_a_change_is_in_points_or_per_cent_or_a_multiple(before, after, metric, text):
    assert numbers.change(before, after, metric) == text


def test_how_open_gates_ended_is_a_column_where_there_are_gates():
    def gates_column(results):
        rows = study_rows(study(), results)
        return [[cell(row) for row in rows] for title, cell in columns(rows, "perplexity") if title == "gate openness"]

    curve = [CurvePoint(step=1, gate_openness=0.9), CurvePoint(step=2, gate_openness=0.125)]
    gated = [result("gated", seed, 21.0, {"w8a8": 21.0}, curve=curve) for seed in (0, 1)]
    assert gates_column(RESULTS) == []
    assert gates_column([*RESULTS[:2], *gated]) == [["-", "0.12"]]


def test_a_run_that_failed_is_told_once_whatever_the_bits():
    both = study(measures=Measures(bits=("w8a8", "w4a8")))
    rows = study_rows(both, [result("vanilla", 0, 20.0, {"w8a8": 21.0, "w4a8": 99.0}), failed("gated", 1, "no disk")])
    assert failures(rows) == ["gated, seed 1: no disk"]
    assert words(rows).endswith("Runs failed: gated.")


TOP1 = {"vanilla": 0.9, "gated": 0.1}


def classified(variant, metric, fp32, quantized, **more):
    return result(
        variant, 0, fp32, {"w8a8": quantized}, metric=metric, **({"task": "images", "better": "higher"} | more)
    )


def test_a_model_that_has_hardly_learned_is_no_good_news():
    sentence = words(study_rows(study(), [result("vanilla", 0, 40.5, {"w8a8": 40.6}), *RESULTS[2:]]))
    assert sentence.endswith("Hardly trained, so this says little of quantization: vanilla.")
    images = [
        classified(name, "top1", top1, 0.1, baselines=Baselines(majority_accuracy=0.1)) for name, top1 in TOP1.items()
    ]
    assert "Hardly trained, so this says little of quantization: gated." in words(
        study_rows(study(), images), "top1", "higher"
    )


def test_a_model_without_a_number_in_fp32_is_named():
    sentence = words(study_rows(study(), [result("vanilla", 0, None, {"w8a8": None}), *RESULTS[2:]]))
    assert "cannot be judged, since fp32 gives no number: vanilla" in sentence


def test_a_share_says_that_it_is_one_and_columns_say_what_they_mean():
    found = [classified("vanilla", "agreement", 0.5, 0.25, baselines=Baselines())]
    rows = study_rows(study(grid={"variant": ["vanilla"]}), found)
    assert cells(rows, rows[0], "agreement")["agreement, %"] == "50.00"
    assert [text.partition(":")[0] for text in legend(rows, "agreement")] == [
        "largest value",
        "kurtosis",
        "dead rows, %",
    ]
