"""The table of a study: means and deviations over seeds, what quantization does in words, failures beside."""

from __future__ import annotations

import statistics

import pytest

from quietformer.config.study import Measures, Study
from quietformer.results.study_table import columns, effect, failures, legend, one_line, shown
from quietformer.study.table import in_words, study_rows


def study(**fields):
    return Study(**({"recipe": "r", "grid": {"variant": ["vanilla", "gated"]}, "seeds": (0, 1)} | fields))


def result(variant, seed, floating, quantized, **more):
    return {
        "name": f"{variant},seed={seed}", "at": {"variant": variant}, "seed": seed, "attention": "softmax()",
        "primary": "perplexity", "better": "lower", "float": {"perplexity": floating},
        "quantized": {bits: {"perplexity": {"mean": value, "std": 0.1}} for bits, value in quantized.items()},
        "real": None, "outliers": {"infinity_norm": 10.0 + seed, "kurtosis": 3.0}, "curve": [{"step": 1, "dead_rows": 0.25}],
        "beside": {"bigram_perplexity": 40.0}, "seconds": 60.0, "paper": {},
    } | more  # fmt: skip


RESULTS = [
    result("vanilla", 0, 20.0, {"w8a8": 40.0}),
    result("vanilla", 1, 22.0, {"w8a8": 50.0}),
    result("gated", 0, 21.0, {"w8a8": 21.0}),
    result("gated", 1, 21.5, {"w8a8": 21.6}),
]


def test_a_row_has_mean_and_deviation_over_seeds():
    rows = study_rows(study(), RESULTS)
    assert [row["at"]["variant"] for row in rows] == ["vanilla", "gated"]
    for key, values in (("float", [20.0, 22.0]), ("quantized", [40.0, 50.0]), ("infinity_norm", [10.0, 11.0])):
        assert rows[0][key] == {"mean": statistics.fmean(values), "std": statistics.stdev(values)}
    assert rows[0]["runs"] == 2


def test_the_sentence_says_what_breaks_and_what_does_not():
    rows = study_rows(study(), RESULTS)
    assert [effect(row) for row in rows] == ["broken", "none"]
    sentence = in_words(rows)
    assert "W8A8 breaks: vanilla (21.00 -> 45.00)" in sentence
    assert "costs next to nothing: gated (21.25 -> 21.30)" in sentence


def test_a_failed_run_is_said_and_the_others_are_counted():
    failed = {"name": "gated,seed=1", "at": {"variant": "gated"}, "seed": 1, "failed": "the loss is not finite"}
    rows = study_rows(study(), [*RESULTS[:3], failed])
    assert rows[1]["runs"] == 1
    assert rows[1]["failed"] == ["seed 1: the loss is not finite"]
    assert rows[1]["float"]["mean"] == 21.0
    assert "failed: the loss is not finite" in one_line(failed)


def test_a_point_without_a_run_has_no_figures():
    failed = [
        {"name": f"gated,seed={seed}", "at": {"variant": "gated"}, "seed": seed, "failed": "no disk"} for seed in (0, 1)
    ]
    rows = study_rows(study(), [*RESULTS[:2], *failed])
    assert "float" not in rows[1]
    assert effect(rows[1]) == "unknown"
    cells = {title: cell(rows[1]) for title, cell in columns(rows)}
    assert cells["perplexity"] == "-"
    assert cells["runs"] == "0 (2 failed)"
    assert in_words(study_rows(study(), failed)) == "No run came through."


def test_a_model_that_gives_no_number_any_more_is_broken():
    rows = study_rows(study(), [result("vanilla", 0, 20.0, {"w8a8": None})])
    assert effect(rows[0]) == "broken"
    assert shown(rows[0]["quantized"]) == "broken"


def test_a_graph_that_cannot_be_exported_is_no_broken_model():
    exported = result("vanilla", 0, 20.0, {"w8a8": 21.0}, real={"figures": {"perplexity": 21.5}})
    refused = result("vanilla", 1, 20.0, {"w8a8": 21.0}, real={"error": "no such operator"})
    (row,) = study_rows(study(grid={"variant": ["vanilla"]}), [exported, refused])
    assert row["real"]["mean"] == 21.5
    assert row["not_exported"] == ["seed 1: no such operator"]


def test_one_run_has_no_deviation_to_show():
    (row,) = study_rows(study(grid={"variant": ["vanilla"]}), [RESULTS[0]])
    assert {title: cell(row) for title, cell in columns([row])}["perplexity"] == "20.00"


def test_a_run_without_a_largest_value_is_told_all_the_same():
    assert "largest" not in one_line(result("vanilla", 0, 20.0, {"w8a8": 21.0}, outliers={"infinity_norm": None}))


def test_bits_are_rows_of_the_same_runs():
    asked = study(grid={"variant": ["vanilla"], "bits": ["w8a8", "w4a8"]})
    rows = study_rows(asked, [result("vanilla", 0, 20.0, {"w8a8": 21.0, "w4a8": 99.0})])
    assert [(row["at"]["bits"], row["quantized"]["mean"]) for row in rows] == [("w8a8", 21.0), ("w4a8", 99.0)]
    both = study(grid={"variant": ["vanilla"]}, measures=Measures(bits=("w8a8", "w4a8")))
    rows = study_rows(both, [result("vanilla", 0, 20.0, {"w8a8": 21.0, "w4a8": 99.0})])
    assert [dict((title, cell(row)) for title, cell in columns(rows))["bits"] for row in rows] == ["W8A8", "W4A8"]


@pytest.mark.parametrize(
    ("figure", "measure", "text"),
    [
        ({"mean": 0.5, "std": 0.25}, "top1", "50.00 ± 25.00"),
        ({"mean": 0.9987, "std": 0.0004}, "cosine", "0.9987 ± 0.0004"),
        ({"mean": 12345.6, "std": 1.0}, "perplexity", "12,346 ± 1"),
        (None, "perplexity", "-"),
        ({"mean": None, "std": None}, "perplexity", "broken"),
    ],
)
def test_figures_are_shown_as_people_read_them(figure, measure, text):
    assert shown(figure, measure, spread=True) == text


def test_how_open_gates_ended_is_a_column_where_there_are_gates():
    def gates_column(results):
        rows = study_rows(study(), results)
        return [[cell(row) for row in rows] for title, cell in columns(rows) if title == "gate openness"]

    gated = [
        one | {"curve": [{"step": 1, "gate_openness": 0.9}, {"step": 2, "gate_openness": 0.125}]} for one in RESULTS[2:]
    ]
    assert gates_column(RESULTS) == []
    assert gates_column([*RESULTS[:2], *gated]) == [["-", "0.12"]]


def test_a_run_that_failed_is_told_once_whatever_the_bits():
    failed = {"name": "gated,seed=1", "at": {"variant": "gated"}, "seed": 1, "failed": "no disk"}
    both = study(measures=Measures(bits=("w8a8", "w4a8")))
    rows = study_rows(both, [result("vanilla", 0, 20.0, {"w8a8": 21.0, "w4a8": 99.0}), failed])
    assert failures(rows) == ["gated, seed 1: no disk"]
    assert in_words(rows).endswith("Runs failed: gated.")


TOP1 = {"vanilla": 0.9, "gated": 0.1}


def classified(variant, measure, floating, quantized, **more):
    changed = {
        "primary": measure, "better": "higher", "float": {measure: floating},
        "quantized": {"w8a8": {measure: {"mean": quantized, "std": 0.0}}},
    }  # fmt: skip
    return result(variant, 0, floating, {}) | changed | more


def test_a_model_that_has_hardly_learned_is_no_good_news():
    sentence = in_words(study_rows(study(), [result("vanilla", 0, 40.5, {"w8a8": 40.6}), *RESULTS[2:]]))
    assert sentence.endswith("Hardly trained, so this says little of quantization: vanilla.")
    images = [classified(name, "top1", top1, 0.1, beside={"majority_accuracy": 0.1}) for name, top1 in TOP1.items()]
    assert "Hardly trained, so this says little of quantization: gated." in in_words(study_rows(study(), images))


def test_a_model_without_a_number_in_floating_point_is_named():
    sentence = in_words(study_rows(study(), [result("vanilla", 0, None, {"w8a8": None}), *RESULTS[2:]]))
    assert "finds no number to begin with: vanilla" in sentence


def test_a_share_says_that_it_is_one_and_columns_say_what_they_mean():
    found = [classified("vanilla", "agreement", 0.5, 0.25, beside={})]
    rows = study_rows(study(grid={"variant": ["vanilla"]}), found)
    assert {title: cell(rows[0]) for title, cell in columns(rows)}["agreement, %"] == "50.00"
    assert [text.partition(":")[0] for text in legend(rows)] == ["largest value", "kurtosis", "dead rows, %"]
