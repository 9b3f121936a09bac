"""The page of a study in a real browser: the table, the grid, the curves and the runs, as the report has them."""

from __future__ import annotations

import itertools
import json
import math
import re

import pytest

from quietformer.config.study import Study, trial_name
from quietformer.rendering.page import page
from quietformer.results.inspect import Headline
from quietformer.results.quality import Metrics, Spread, Spreads
from quietformer.results.trial import Baselines, CurvePoint, RealInt8, TrialResult, TrialRun
from quietformer.study.run import study_report
from tests.rendering.marks import in_browser, on_every_screen
from tests.rendering.tabs import text, wait_until

EVIL = "</script><img src=x onerror=alert(1)>\"'/*SCRIPT*/"
LONG = "very_long_name_" * 20
GAMMA, ZETA, ALPHA = "attention.normalizer.gamma", "attention.normalizer.zeta", "attention.normalizer.alpha"
PAPER = {
    "table": "bert_full", "method": "vanilla", "fp16": [4.49, 0.01], "inf": [735.0, 54.9],
    "kurtosis": [3076.0, 262.0], "w8a8": [1294.0, 1046.0],
}  # fmt: skip


def headline(norm, kurtosis):
    return Headline(
        source="as the code measures it",
        infinity_site="ffn_output",
        infinity_norm=norm,
        kurtosis_sites=[],
        kurtosis=kurtosis,
    )


def points(**curves):
    """A curve from the values of each measure over the steps 10, 20, ..."""
    count = len(next(iter(curves.values())))
    return [CurvePoint(step=10 * (i + 1), **{name: values[i] for name, values in curves.items()}) for i in range(count)]


def trial(at, seed, fp32, quantized, norm=10.0, /, *, name="", elsewhere=None, **more):
    """A run; its outliers and its curve follow from `norm` and the seed."""
    curve = points(
        loss=[6 - step / 50 + seed / 10 for step in (10, 20, 30)],
        ffn_infinity_norm=[norm * step / 30 + seed for step in (10, 20, 30)],
        ffn_kurtosis=[norm] * 3,
    )
    fields = {
        "attention": "softmax()", "parameters": 503040, "steps": 30, "seconds": 90.0 + 3 * seed, "task": "causal",
        "primary": "perplexity", "better": "lower", "fp32": Metrics(perplexity=fp32, loss=3.0),
        "quantized": {bits: Spreads(perplexity=Spread(mean=value, std=0.25)) for bits, value in quantized.items()},
        "outliers": headline(norm + seed, 5 * norm + seed), "curve": curve, "baselines": Baselines(bigram_perplexity=34.62),
    } | more  # fmt: skip
    where = {} if elsewhere is None else {"elsewhere": elsewhere}
    return TrialRun(name=name or trial_name(at, seed), at=at, seed=seed, result=TrialResult(**fields), **where)


def classified(at, seed, fp32, quantized, **more):
    changed = {
        "task": "images", "primary": "top1", "better": "higher", "fp32": Metrics(top1=fp32),
        "quantized": {"w8a8": Spreads(top1=Spread(mean=quantized, std=0.002))},
        "baselines": Baselines(majority_accuracy=0.1007),
    }  # fmt: skip
    return trial(at, seed, 1.0, {}, **(changed | more))


def failed(at, seed, why="the loss is not finite"):
    return TrialRun(name=trial_name(at, seed), at=at, seed=seed, failed=why)


def report(results, grid=None, **fields):
    """What `compare` and `sweep` hand to the page."""
    grid = grid or {"variant": list(dict.fromkeys(run.at["variant"] for run in results))}
    asked = {"name": "a-study", "recipe": "small/opt", "grid": grid, "seeds": (0, 1), "measures": {"pages": True}}
    made = study_report(Study(**(asked | fields)), results, "quietformer compare --seeds 2")
    return made.model_copy(update={"versions": {"torch": "2.13"}})


def real(value):
    return RealInt8(metrics=Metrics(perplexity=value))


def variants(**more):
    vanilla, clipped, gated = ({"variant": name} for name in ("vanilla", "clipped", "gated"))
    dead = points(loss=[5.0, 5.0], ffn_infinity_norm=[4.0, 4.0], dead_rows=[0.1, 0.2])
    gate = points(loss=[5.0, 5.0], ffn_infinity_norm=[2.0, 2.0], gate_openness=[0.25, 0.25])
    results = [
        trial(vanilla, 0, 23.1, {"w8a8": 71.3}, 300.0, real=real(70.1), paper=PAPER),
        trial(vanilla, 1, 23.4, {"w8a8": 80.2}, 340.0, real=real(79.3), paper=PAPER),
        trial(clipped, 0, 23.6, {"w8a8": 25.1}, 31.0, real=real(25.2), curve=dead),
        trial(clipped, 1, 23.9, {"w8a8": 25.3}, 33.0, real=real(25.4), curve=dead),
        trial(gated, 0, 22.8, {"w8a8": 22.9}, 9.0, real=real(22.91), curve=gate),
        trial(gated, 1, 22.9, {"w8a8": 23.1}, 11.0, real=real(23.12), curve=gate),
    ]
    return report(results, **more)


GAMMAS, ZETAS, ALPHAS = [0.0, -0.01, -0.1], [1.0, 1.03], [0.5, 1, 2, 4, 8]


def two_fields(bits=("w8a8",), **more):
    """Of which one point broke in W8A8 and another never came through."""
    results = []
    for i, gamma in enumerate(GAMMAS):
        for j, zeta in enumerate(ZETAS):
            at = {GAMMA: gamma, ZETA: zeta}
            if (i, j) == (2, 1):
                results += [failed(at, seed) for seed in (0, 1)]
                continue
            for seed in (0, 1):
                worse = {name: 20 + 90 / (i + 1) ** 2 + j + 30 * k for k, name in enumerate(bits)}
                found = worse | ({"w8a8": None} if (i, j) == (0, 1) else {})
                curve = points(loss=[5.0], dead_rows=[0.1 * i])
                results.append(trial(at, seed, 20.0 + i + j / 8, found, 400.0 / 10**i + j, curve=curve))
    return report(results, {GAMMA: GAMMAS, ZETA: ZETAS}, measures={"bits": bits, "pages": True}, **more)


def one_number(bits=("w8a8",)):
    results = [
        trial(
            {ALPHA: alpha},
            seed,
            20 + alpha / 8 + seed,
            {b: 90 / alpha + 20 + k for k, b in enumerate(bits)},
            64 / alpha,
        )
        for alpha in ALPHAS
        for seed in (0, 1)
    ]
    return report(results, {ALPHA: ALPHAS}, measures={"bits": bits})


def bits_axis(**grid):
    axes = grid or {"variant": ["vanilla", "gated"]}
    results = [
        trial({field: value for field in axes}, seed, 20 + seed, {"w8a8": 21.0 + seed, "w4a4": 900.0}, real=real(21.5))
        for values in axes.values()
        for value in values
        for seed in (0, 1)
    ]
    return report(results, axes | {"bits": ["w8a8", "w4a4"]})


def image():
    found = (("vanilla", 0.7111), ("clipped", 0.9391), ("gated", 0.9643))
    results = [
        classified({"variant": name}, seed, 0.9681 + seed / 100, quantized + seed / 50)
        for name, quantized in found
        for seed in (0, 1)
    ]
    return report(results)


def some_failed():
    vanilla, gated = {"variant": "vanilla"}, {"variant": "gated"}
    results = [
        trial(vanilla, 0, 20.0, {"w8a8": 30.0}),
        failed(vanilla, 1),
        failed(gated, 0, "no disk"),
        failed(gated, 1),
    ]
    return report(results)


def broken():
    vanilla, gated, wild = {"variant": "vanilla"}, {"variant": "gated"}, {"variant": "wild"}
    results = [
        trial(vanilla, 0, 20.0, {"w8a8": None}, real=real(None)),
        trial(vanilla, 1, 21.0, {"w8a8": 30.0}, real=real(31.0)),
        trial(gated, 0, 20.5, {"w8a8": None}),
        trial(wild, 0, None, {"w8a8": None}, outliers=None, curve=[]),
    ]
    return report(results)


SHAPES = {
    "variants": variants,
    "two fields": two_fields,
    "two fields, several bits": lambda: two_fields(("w8a8", "w6a6")),
    "one number": one_number,
    "one number, several bits": lambda: one_number(("w8a8", "w6a6", "w4a8")),
    "numbers as text": lambda: report(
        [trial({ALPHA: a}, 0, 20, {"w8a8": 21}) for a in ("1e-3", "1e-2")], {ALPHA: ["1e-3", "1e-2"]}
    ),
    "bits beside variants": bits_axis,
    "bits alone": lambda: report(
        [trial({}, seed, 20.0, {"w8a8": 21.0, "w4a4": 90.0}) for seed in (0, 1)], {"bits": ["w8a8", "w4a4"]}
    ),
    "three fields": lambda: report(
        [trial({GAMMA: g, ZETA: z, ALPHA: a}, 0, 20, {"w8a8": 21}) for g in (0, 1) for z in (1, 2) for a in (3, 4)],
        {GAMMA: [0, 1], ZETA: [1, 2], ALPHA: [3, 4]},
    ),
    "one run": lambda: report([trial({"variant": "vanilla"}, 0, 20.0, {"w8a8": 21.0})], seeds=(0,)),
    "image": image,
    "some failed": some_failed,
    "all failed": lambda: report([failed({"variant": "a"}, 0), failed({"variant": "b"}, 0)]),
    "broken": broken,
}


def number(written: str) -> float:
    return float(written.replace(",", ""))


def rows_of(tab, selector="#result-table") -> list[dict[str, str]]:
    """What is read in each row, by the heads of the columns; without the lines of the paper."""
    heads = tab.evaluate(f"[...document.querySelectorAll('{selector} thead th')].map(th => th.firstChild.textContent)")
    lines = tab.locator(f"{selector} tbody tr:not(.paper)").all()
    return [dict(zip(heads, line.locator("td").all_inner_texts(), strict=False)) for line in lines]


def mean_and_std(cell: str) -> list[float]:
    found = re.match(r"([\d.,]+)(?:\s+± ([\d.,]+))?", cell)
    return [number(part) for part in found.groups() if part]


def styled(tab, selector, name) -> list[float]:
    return tab.evaluate(f"[...document.querySelectorAll('{selector}')].map(e => parseFloat(e.style.{name}))")


def test_it_is_one_file_without_markup_of_others():
    study = variants(name=EVIL, about=EVIL, paper=EVIL).model_copy(update={"command": EVIL, "sentence": EVIL})
    written = page(study)
    assert EVIL not in written
    assert written.count("</script>") == 2
    assert not re.search(r"https?://", written.replace("http://www.w3.org/2000/svg", ""))
    data = written.split('id="data">')[1].split("</script>")[0]
    told, kept = json.loads(data), json.loads(study.to_json())
    assert {name: told[name] for name in kept if name not in ("rows", "trials")} == {
        name: kept[name] for name in kept if name not in ("rows", "trials")
    }
    for name in ("rows", "trials"):
        assert [{key: line[key] for key in old} for line, old in zip(told[name], kept[name], strict=True)] == kept[name]


@in_browser
@pytest.mark.parametrize("shape", SHAPES)
def test_every_kind_of_study_is_drawn(opened, shape):
    study = SHAPES[shape]()
    tab, problems = opened(study)
    assert tab.text_content("#title") == "a-study"
    assert text(tab, "#verdict strong") == study.sentence.replace("->", "→")
    assert len(rows_of(tab)) == len(study.rows)
    grid = [values for values in study.study.grid.values() if len(values) > 1]
    assert tab.is_visible("#heat") == (len(grid) == 2)
    assert tab.is_visible("#field") == (shape in ("one number", "one number, several bits", "numbers as text"))
    assert tab.is_visible("#learning") == tab.is_visible("#quantization") == (shape != "all failed")
    for measure in tab.locator("#heat-measure option").all():
        tab.select_option("#heat-measure", measure.get_attribute("value"))
    for measure in tab.locator("#curve-measure option").all():
        tab.select_option("#curve-measure", measure.get_attribute("value"))
    assert not re.search(r"NaN|null|undefined|Infinity|\[object", tab.inner_text("body"))
    assert not re.search(r"NaN|undefined|Infinity", tab.inner_html("main"))
    assert problems == []


@in_browser
def test_the_table_has_the_figures_of_every_row(opened):
    study = variants()
    tab, problems = opened(study)
    found = rows_of(tab)
    columns = {
        "fp32": "fp32", "W8A8": "quantized", "real INT8": "real", "largest value": "infinity_norm",
        "kurtosis": "kurtosis",
    }  # fmt: skip
    for shown, row in zip(found, study.rows, strict=True):
        assert shown["setting"].split("\n")[:2] == [row.at["variant"], row.attention]
        for head, key in columns.items():
            mean, std = row.spread(key).mean, row.spread(key).std
            digits = 0.5 if mean >= 1000 else 0.05 if mean >= 100 else 0.005
            assert mean_and_std(shown[head]) == pytest.approx([mean, std], abs=1.01 * digits), head
            assert shown[head].startswith(row.text(key, "perplexity")), "as the terminal shows it"
        assert number(shown["bigram"]) == 34.62
        assert number(shown["minutes"]) == pytest.approx(row.seconds.mean / 60, abs=0.006)
        assert shown["runs"] == "2"
    assert [shown["dead rows"] for shown in found] == ["–", "20.00 ± 0.00", "–"]
    assert [shown["gate openness"] for shown in found] == ["–", "–", "0.25 ± 0.00"]
    bold = [cell.text_content() for cell in tab.locator("#result-table td:not(:first-child) b").all()]
    assert bold == ["22.85", "23.00", "23.02", "10.50", "50.50"]  # the gated model is the best of every column
    assert problems == []


@in_browser
def test_accuracies_are_percentages_and_their_change_is_in_points(opened):
    study = image()
    tab, problems = opened(study)
    for shown, row in zip(rows_of(tab), study.rows, strict=True):
        for head, key in (("fp32", "fp32"), ("W8A8", "quantized")):
            expected = [100 * row.spread(key).mean, 100 * row.spread(key).std]
            assert mean_and_std(shown[head]) == pytest.approx(expected, abs=0.0051)
        gained = 100 * (row.quantized.mean - row.fp32.mean)
        told = re.search(r"([+−])([\d.]+) points", shown["W8A8"])
        assert float(told[2]) * (1 if told[1] == "+" else -1) == pytest.approx(gained, abs=0.051)
        assert shown["largest class"] == "10.07"
    assert "accuracy, % ↑" in text(tab, "#result-table thead")
    assert "Further right is better" in text(tab, "#pair-note")
    assert problems == []


@in_browser
@pytest.mark.parametrize(
    ("better", "values"),
    [
        ("lower", (99.0, 100.9, 101.2, 104.9, 105.1, 149.0, 151.0, None)),
        ("higher", (0.81, 0.797, 0.79, 0.785, 0.73, 0.71)),
    ],
)
def test_a_change_is_called_and_coloured_as_the_terminal_calls_it(opened, better, values):
    looks = {"none": "good", "little": "good", "harm": "some", "broken": "bad"}
    words = {"none": "next to nothing lost", "little": "a little lost", "harm": "quality lost", "broken": "broken"}
    make = (
        (lambda at, v: trial(at, 0, 100.0, {"w8a8": v}))
        if better == "lower"
        else (lambda at, v: classified(at, 0, 0.8, v))
    )
    study = report([make({"variant": f"v{i}"}, value) for i, value in enumerate(values)])
    tab, _ = opened(study)
    changes = tab.locator("#result-table .change").all()
    kinds = [study.effect(row) for row in study.rows]
    assert set(kinds) == set(looks)
    assert [change.get_attribute("class").split()[-1] for change in changes] == [looks[kind] for kind in kinds]
    assert [change.locator(".unseen").text_content() for change in changes] == [f", {words[kind]}" for kind in kinds]


@in_browser
def test_what_failed_is_said_beneath_and_counted(opened):
    tab, problems = opened(some_failed())
    first, second = rows_of(tab)
    assert (first["runs"], second["runs"]) == ("1 of 2", "0 of 2")
    assert mean_and_std(first["fp32"]) == [20.0]  # one run has no deviation
    assert "no run finished" in second["setting"]
    assert [second[head] for head in ("fp32", "W8A8", "kurtosis")] == ["–", "–", "–"]
    assert tab.locator("#troubles li").all_text_contents() == [
        "vanilla, seed 1: the loss is not finite", "gated, seed 0: no disk", "gated, seed 1: the loss is not finite",
    ]  # fmt: skip
    assert "runs, 3 failed" in text(tab, "#verdict")
    assert problems == []


@in_browser
def test_failures_are_said_once_though_every_kind_of_bits_has_a_row(opened):
    tab, _ = opened(two_fields(("w8a8", "w6a6")))
    assert tab.locator("#troubles li").count() == 2


@in_browser
def test_a_model_without_a_number_is_called_broken(opened):
    tab, problems = opened(broken())
    found = {shown["setting"].split("\n")[0]: shown for shown in rows_of(tab)}
    for name in ("vanilla", "gated"):
        assert found[name]["W8A8"].startswith("broken")
        assert "no number" in found[name]["W8A8"]
    assert found["vanilla"]["real INT8"].startswith("broken")
    assert found["gated"]["real INT8"] == "–"
    assert found["wild"]["fp32"] == "broken"
    assert tab.locator("#pairs .link.none").count() == 2
    assert problems == []


@in_browser
def test_a_graph_that_was_not_exported_is_not_called_broken(opened):
    at = {"variant": "gated"}
    results = [
        trial(at, 0, 20.0, {"w8a8": 20.1}, real=real(20.2)),
        trial(at, 1, 20.0, {"w8a8": 20.1}, real=RealInt8(error="no operator")),
    ]
    tab, _ = opened(report(results))
    assert rows_of(tab)[0]["real INT8"].startswith("20.20")
    assert tab.locator("#troubles li").all_text_contents() == ["gated, seed 1, has no real INT8: no operator"]
    assert [shown["real INT8"] for shown in rows_of(tab, "#run-table")] == ["20.20", "not exported"]


@in_browser
def test_real_integers_belong_to_eight_bits(opened):
    tab, _ = opened(bits_axis())
    found = rows_of(tab)
    assert [shown["setting"].split("\n")[0] for shown in found] == [
        "vanilla, W8A8", "vanilla, W4A4", "gated, W8A8", "gated, W4A4",
    ]  # fmt: skip
    assert [shown["real INT8"].split()[0] for shown in found] == ["21.50", "–", "21.50", "–"]


@in_browser
def test_the_papers_figures_stand_below_and_are_marked(opened):
    study = variants(paper="Gates leave no outliers.")
    finding = {"paper": {"table": "bias_init_study", "finding": "about 0.25 is good"}}
    study = study.model_copy(update={"rows": [*study.rows[:2], study.rows[2].model_copy(update=finding)]})
    tab, problems = opened(study)
    lines = tab.locator("#result-table tr.paper")
    assert lines.count() == 2
    cells = [" ".join(cell.split()) for cell in lines.nth(0).locator("td").all_inner_texts()]
    assert cells[0] == "the paper, at its size vanilla (bert full)"
    assert cells[1:6] == ["4.49 ± 0.01", "1294 ± 1046", "", "735 ± 54.9", "3076 ± 262"]
    assert (
        text(tab, "#result-table tr.paper:last-child") == "the paper, at its size (bias init study) about 0.25 is good"
    )
    above = lines.nth(0).evaluate("line => line.previousSibling.textContent")
    assert above.startswith("vanilla")
    assert text(tab, "#said blockquote") == "Gates leave no outliers."
    assert problems == []


@in_browser
def test_an_untrained_model_is_told_from_one_that_beats_counting(opened):
    at = [{"variant": name} for name in ("new", "old")]
    tab, _ = opened(report([trial(at[0], 0, 190.0, {"w8a8": 190.0}), trial(at[1], 0, 20.0, {"w8a8": 20.0})]))
    assert text(tab, "#result-note").endswith("No better than that, so hardly trained: new.")


@in_browser
def test_figures_far_apart_stand_by_their_logarithm(opened):
    study = variants()
    tab, _ = opened(study)
    assert "logarithmic" in text(tab, "#pair-scale")
    places = styled(tab, "#pairs .mark.fp32", "left") + styled(tab, "#pairs .mark.quantized", "left")
    logs = [math.log(row.spread(key).mean) for key in ("fp32", "quantized") for row in study.rows]
    low, high = logs.index(min(logs)), logs.index(max(logs))
    slope = (places[high] - places[low]) / (logs[high] - logs[low])
    assert slope > 0
    assert places == pytest.approx([places[low] + slope * (value - logs[low]) for value in logs], abs=0.01)
    assert [link.get_attribute("class") for link in tab.locator("#pairs .link").all()] == [
        "link bad",
        "link some",
        "link good",
    ]
    assert [" ".join(figure.split()[:3]) for figure in tab.locator("#pairs .values").all_inner_texts()] == [
        "23.25 → 75.75", "23.75 → 25.20", "22.85 → 23.00",
    ]  # fmt: skip


@in_browser
def test_a_trifle_is_a_short_line(opened):
    tab, _ = opened(report([trial({"variant": "gated"}, 0, 20.0, {"w8a8": 20.04})]))
    assert styled(tab, "#pairs .link", "width")[0] < 5
    assert "logarithmic" not in text(tab, "#pair-scale")


HEAT = {
    "fp32": ("fp32", 1), "quantized": ("quantized", 1), "infinity_norm": ("infinity_norm", 1),
    "kurtosis": ("kurtosis", 1), "dead_rows": ("dead_rows", 100),
}  # fmt: skip


@in_browser
def test_the_map_of_two_fields_has_every_figure(opened):
    study = two_fields()
    tab, problems = opened(study)
    assert text(tab, "#heat-title") == "Gamma and zeta"
    assert tab.locator("#heat-measure option").evaluate_all("all => all.map(o => o.value)") == list(HEAT)
    for measure, (key, scale) in HEAT.items():
        tab.select_option("#heat-measure", measure)
        cells = tab.locator("#heat-map .cell").all_text_contents()
        for cell, row in zip(cells, study.rows, strict=True):
            mean = None if row.spread(key) is None else row.spread(key).mean
            if not row.runs:
                assert cell == "failed"
            elif mean is None:
                assert cell == "broken"
            else:
                assert number(cell) == pytest.approx(scale * mean, rel=0.005)
    assert problems == []


@in_browser
@pytest.mark.parametrize("measure", ["infinity_norm", "kurtosis"])
def test_outliers_are_coloured_by_their_logarithm(opened, measure):
    study = two_fields()
    tab, _ = opened(study)
    tab.select_option("#heat-measure", measure)
    heats = tab.evaluate("[...document.querySelectorAll('.cell')].map(c => c.style.getPropertyValue('--heat'))")
    logs = [math.log(row.spread(measure).mean) for row in study.rows if row.runs]
    expected = [(value - min(logs)) / (max(logs) - min(logs)) for value in logs]
    assert [float(heat) for heat in heats if heat] == pytest.approx(expected, abs=1e-6)
    assert heats[-1] == ""  # that point has no values
    assert tab.locator(".cell.best").all_text_contents() == [tab.locator(".cell").nth(expected.index(0)).text_content()]


@in_browser
def test_the_best_accuracy_is_the_palest(opened):
    values = {(g, z): 0.5 + 0.1 * g + 0.02 * z for g in (0, 1) for z in (0, 1)}
    results = [classified({GAMMA: g, ZETA: z}, 0, 0.9, value) for (g, z), value in values.items()]
    tab, _ = opened(report(results, {GAMMA: [0, 1], ZETA: [0, 1]}))
    heats = tab.evaluate("[...document.querySelectorAll('.cell')].map(c => +c.style.getPropertyValue('--heat'))")
    assert heats == pytest.approx([(0.62 - value) / 0.12 for value in values.values()])
    assert tab.locator(".cell.best").all_text_contents() == ["62.00"]


@in_browser
def test_a_cell_is_read_by_pointer_and_by_keyboard(opened):
    study = two_fields()
    tab, problems = opened(study)
    tab.locator("#heat-map .cell").first.focus()
    tab.keyboard.press("ArrowDown")
    said = text(tab, "#heat-readout")
    row = next(row for row in study.rows if row.at == {GAMMA: -0.01, ZETA: 1.0})
    assert said.startswith("gamma -0.01, zeta 1.0: perplexity, fp32 ")
    assert f"largest value {row.infinity_norm.mean:.2f} ± {row.infinity_norm.std:.2f}" in said
    assert f"perplexity, W8A8 {row.quantized.mean:.2f} ± 0.00" in said
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("ArrowRight")
    assert "no run finished; seed 0: the loss is not finite" in text(tab, "#heat-readout")
    tab.locator("#heat-map .cell").nth(1).hover()
    assert "perplexity, W8A8 broken" in text(tab, "#heat-readout")
    assert tab.locator("#heat-map .cell[tabindex='0']").count() == 1
    assert problems == []


@in_browser
def test_bits_that_are_no_axis_can_be_chosen_for_the_map(opened):
    study = two_fields(("w8a8", "w6a6"))
    tab, _ = opened(study)
    for bits in ("w8a8", "w6a6"):
        tab.select_option("#heat-bits", bits)
        means = [row.quantized and row.quantized.mean for row in study.rows if row.bits == bits]
        shown = tab.locator("#heat-map .cell").all_text_contents()
        assert [cell in ("broken", "failed") for cell in shown] == [mean is None for mean in means]
        figures = [number(cell) for cell in shown if cell not in ("broken", "failed")]
        assert figures == pytest.approx([mean for mean in means if mean is not None], rel=0.005)
    tab, _ = opened(two_fields())
    assert not tab.is_visible("#heat-bits")


@in_browser
def test_lines_over_a_number_stand_where_the_figures_put_them(opened):
    study = one_number()
    tab, problems = opened(study)
    assert text(tab, "#field-title") == "Over alpha"
    assert text(tab, "#field-note").startswith(f"Across: {ALPHA}, logarithmic.")  # 0.5 to 8 by doubling
    chart = "#field-charts > div:nth-child(2)"
    assert text(tab, f"{chart} h3") == "Largest value, logarithmic"
    marks = tab.locator(f"{chart} circle").all()
    logs = [math.log(row.infinity_norm.mean) for row in study.rows]
    heights = [float(mark.get_attribute("cy")) for mark in marks]
    slope = (heights[-1] - heights[0]) / (logs[-1] - logs[0])
    assert slope < 0
    assert heights == pytest.approx([heights[0] + slope * (value - logs[0]) for value in logs], abs=0.01)
    across = [float(mark.get_attribute("cx")) for mark in marks]
    even = (across[-1] - across[0]) / 4
    assert [right - left for left, right in itertools.pairwise(across)] == pytest.approx([even] * 4)
    # A bar reaches as far as the deviation does.
    bar = tab.locator(f"{chart} g").first.locator("line").first
    mean, std = study.rows[0].infinity_norm.mean, study.rows[0].infinity_norm.std
    ends = [heights[0] + slope * (math.log(value) - logs[0]) for value in (mean + std, mean - std)]
    assert [float(bar.get_attribute(name)) for name in ("y1", "y2")] == pytest.approx(ends, abs=0.01)
    tab.locator("#field-charts svg").first.locator("g").first.focus()
    tab.keyboard.press("ArrowRight")
    row = study.rows[1]
    expected = [row.fp32.mean, row.fp32.std, row.quantized.mean, row.quantized.std]
    told = re.fullmatch(r"alpha 1: fp32 (.+) ± (.+), W8A8 (.+) ± (.+)", text(tab, "#field-readout"))
    assert [number(found) for found in told.groups()] == pytest.approx(expected, abs=0.051)
    assert problems == []


@in_browser
@pytest.mark.parametrize(
    ("values", "words"),
    [([4, 1, 2, 3], ""), ([0.001, 0.01, 0.1], ", logarithmic"), ([0, -0.0001, -0.03, 0.5], ", evenly spaced")],
)
def test_values_are_kept_apart(opened, values, words):
    tab, _ = opened(report([trial({ALPHA: value}, 0, 20.0, {"w8a8": 21.0}) for value in values], {ALPHA: values}))
    assert text(tab, "#field-note").startswith(f"Across: {ALPHA}{words}.")
    told = (
        tab.locator("#field-charts svg")
        .first.locator("g")
        .evaluate_all("all => all.map(g => g.getAttribute('aria-label'))")
    )
    assert [float(label.split()[1].rstrip(":")) for label in told] == sorted(values)


def strokes(tab) -> list[str]:
    return tab.evaluate("[...document.querySelectorAll('#curves polyline')].map(p => getComputedStyle(p).stroke)")


@in_browser
def test_curves_have_a_colour_a_setting_and_a_line_a_run(opened):
    study = variants()
    tab, problems = opened(study)
    assert tab.input_value("#curve-measure") == "ffn_infinity_norm"
    lines = strokes(tab)
    assert len(lines) == len(study.trials)
    assert lines[0] == lines[1] != lines[2] == lines[3] != lines[4] == lines[5] != lines[0]
    for measure, count in (("loss", 6), ("ffn_kurtosis", 2), ("dead_rows", 2), ("gate_openness", 2)):
        tab.select_option("#curve-measure", measure)
        assert len(strokes(tab)) == count
    assert problems == []


@in_browser
def test_curves_stand_by_the_logarithm_of_outliers(opened):
    study = variants()
    tab, _ = opened(study)
    heights = [
        float(pair.split(",")[1])
        for points in tab.evaluate(
            "[...document.querySelectorAll('#curves polyline')].map(p => p.getAttribute('points'))"
        )
        for pair in points.split()
    ]
    logs = [math.log(point.ffn_infinity_norm) for one in study.trials for point in one.result.curve]
    low, high = logs.index(min(logs)), logs.index(max(logs))
    slope = (heights[high] - heights[low]) / (logs[high] - logs[low])
    assert heights == pytest.approx([heights[low] + slope * (value - logs[low]) for value in logs], abs=0.01)


@in_browser
def test_the_legend_hides_and_shows_a_setting(opened):
    tab, problems = opened(variants())
    vanilla, clipped, gated = tab.locator("#curve-legend button").all()
    assert [button.inner_text() for button in (vanilla, clipped, gated)] == ["vanilla", "clipped", "gated"]
    before = strokes(tab)
    vanilla.click()
    assert vanilla.get_attribute("aria-pressed") == "false"
    assert strokes(tab) == before[2:]  # the others keep their colours
    tab.select_option("#curve-measure", "loss")
    assert strokes(tab) == before[2:]
    vanilla.click()
    assert vanilla.get_attribute("aria-pressed") == "true"
    assert strokes(tab) == before
    for button in (vanilla, clipped, gated):
        button.click()
    assert text(tab, "#curves") == "No setting is chosen."
    gated.click()
    assert strokes(tab) == before[4:]
    assert problems == []


@in_browser
def test_many_settings_are_hidden_and_shown_at_once(opened):
    tab, _ = opened(one_number())
    assert len(strokes(tab)) == 10
    assert len(set(strokes(tab))) == 5
    tab.click("#curve-legend button:text-is('none')")
    assert strokes(tab) == []
    tab.locator("#curve-legend button").nth(1).click()
    assert len(strokes(tab)) == 2
    tab.click("#curve-legend button:text-is('all')")
    assert len(strokes(tab)) == 10


@in_browser
def test_a_curve_is_read_step_by_step(opened):
    study = variants()
    tab, problems = opened(study)
    tab.select_option("#curve-measure", "loss")
    tab.locator("#curves svg").focus()
    assert text(tab, "#curve-readout") == "Step 30, vanilla, seed 0: training loss 5.4"
    tab.keyboard.press("ArrowLeft")
    assert text(tab, "#curve-readout") == "Step 20, vanilla, seed 0: training loss 5.6"
    tab.keyboard.press("ArrowDown")
    assert text(tab, "#curve-readout") == "Step 20, vanilla, seed 1: training loss 5.7"
    assert tab.locator("#curves .run:not(.faint)").count() == 1
    box = tab.locator("#curves svg").bounding_box()
    tab.locator("#curves svg").hover(position={"x": box["width"] - 12, "y": box["height"] / 3})
    assert text(tab, "#curve-readout").startswith("Step 30, vanilla, seed ")
    assert problems == []


@in_browser
def test_runs_lead_to_the_pages_in_their_folders_and_nowhere_else(opened):
    strange = trial({"variant": "vanilla"}, 0, 20.0, {"w8a8": 30.0}, name="a b?#/../,seed=0")
    far = trial({"variant": "far"}, 0, 20.0, {"w8a8": 21.0}, elsewhere="host:/folder")
    tab, problems = opened(report([strange, *some_failed().trials[1:], far]))
    links = tab.evaluate("[...document.querySelectorAll('a')].map(a => [a.getAttribute('href'), a.textContent])")
    assert links == [["runs/a%20b%3F%23%2F..%2F%2Cseed%3D0/inspect.html", "a b?#/../,seed=0"]]
    found = rows_of(tab, "#run-table")
    assert found[0] | {"run": ""} == {
        "run": "", "attention": "softmax()", "seed": "0", "seconds": "90.0", "fp32": "20.00",
        "W8A8": "30.00 ± 0.25", "largest value": "10.00", "kurtosis": "50.00",
    }  # fmt: skip
    assert found[2]["attention"] == "seed 0 failed: no disk"
    assert "3 calibrations" in text(tab, "#run-note")
    assert problems == []


@in_browser
def test_without_pages_there_is_no_link(opened):
    tab, _ = opened(variants(measures={"pages": False}))
    assert tab.locator("a").count() == 0


@in_browser
def test_many_runs_are_shown_on_demand(opened):
    results = [trial({ALPHA: alpha}, seed, 20.0, {"w8a8": 21.0}) for alpha in range(1, 13) for seed in (0, 1)]
    tab, _ = opened(report(results, {ALPHA: list(range(1, 13))}))
    assert len(rows_of(tab, "#run-table")) == 20
    tab.click("#all-runs")
    assert len(rows_of(tab, "#run-table")) == 24
    tab, _ = opened(variants())
    assert not tab.is_visible("#all-runs")


@in_browser
def test_how_it_was_run_is_written_down(opened):
    tab, _ = opened(variants(set={"training.steps": 60}, about="Small models."))
    lines = dict(line.locator("dt, dd").all_text_contents() for line in tab.locator("#given .lines div").all())
    asked = {
        "recipe": "small/opt",
        "grid.variant": "vanilla, clipped, gated",
        "set.training.steps": "60",
        "seeds": "0, 1",
    }
    assert lines | asked | {"measures.bits": "w8a8", "measures.pages": "true", "threads": "1"} == lines
    assert text(tab, "#given code") == "quietformer compare --seeds 2"
    assert text(tab, "#subtitle") == "Small models. Recipe small/opt, causal."
    assert text(tab, "#footer") == "torch 2.13"


@in_browser
def test_fields_of_the_same_last_name_are_told_apart(opened):
    grid = {"attention.gate.kind": ["a", "b"], "optimizer.kind": ["c", "d"]}
    at = [dict(zip(grid, (x, y), strict=True)) for x in "ab" for y in "cd"]
    tab, _ = opened(report([trial(place, 0, 20.0, {"w8a8": 21.0}) for place in at], grid))
    assert rows_of(tab)[0]["setting"].startswith("attention.gate.kind a, optimizer.kind c")


@in_browser
def test_names_appear_as_text(opened):
    at, other = {EVIL: EVIL, "x": 1}, {EVIL: EVIL, "x": 2}
    evil = headline(10.0, 50.0).model_copy(update={"source": EVIL})
    results = [
        trial(
            at,
            0,
            20.0,
            {"w8a8": 21.0},
            attention=EVIL,
            real=RealInt8(error=EVIL),
            name=EVIL,
            outliers=evil,
            paper={"method": EVIL, "finding": EVIL},
        ),
        failed(other, 0, EVIL),
    ]
    given = {"name": EVIL, "about": EVIL, "paper": EVIL, "recipe": EVIL, "set": {EVIL: EVIL}}
    study = report(results, {EVIL: [EVIL], "x": [1, 2]}, **given)
    tab, problems = opened(
        study.model_copy(update={"command": EVIL, "versions": {EVIL: EVIL}, "sentence": EVIL, "task": EVIL})
    )
    for selector in (
        "#title", "#subtitle", "#verdict", "#result-table", "#result-note", "#troubles", "#pairs", "#curve-legend",
        "#run-table", "#said", "#given", "#footer",
    ):  # fmt: skip
        assert EVIL in tab.text_content(selector), selector
    tab.locator("#curves svg").focus()
    assert EVIL in tab.text_content("#curve-readout")
    assert tab.evaluate("document.querySelectorAll('img').length") == 0
    assert problems == []


@on_every_screen
def test_it_fits_a_phone_and_follows_the_colour_scheme(opened, scheme, width):
    at = {"variant": LONG}
    paper = {"method": LONG, "finding": LONG}
    results = [trial(at, 0, 20.0, {"w8a8": 900.0}, attention=LONG, paper=paper), failed(at, 1, LONG)]
    study = report([*results, *variants().trials], about=LONG, paper=LONG, set={LONG: LONG}, name=LONG)
    tab, problems = opened(study, viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate("document.documentElement.dataset.theme") == scheme
    before = strokes(tab)
    tab.click("#theme")
    assert tab.evaluate("document.documentElement.dataset.theme") != scheme
    assert not set(strokes(tab)) & set(before)
    # Letters of the charts are not shrunk with them.
    assert tab.evaluate("document.querySelector('#curves svg').getScreenCTM().a") == pytest.approx(1, abs=0.05)
    assert problems == []


@in_browser
@pytest.mark.parametrize("shape", ["two fields, several bits", "one number"])
def test_grids_fit_a_phone_and_follow_the_width_of_the_window(opened, shape):
    tab, _ = opened(SHAPES[shape](), viewport={"width": 1200, "height": 800})
    tab.set_viewport_size({"width": 390, "height": 800})
    wait_until(tab, "document.querySelector('#curves svg').viewBox.baseVal.width < 390")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390


@in_browser
@pytest.mark.parametrize("shape", ["variants", "two fields", "one number"])
def test_every_control_has_a_name(opened, shape):
    tab, _ = opened(SHAPES[shape]())
    unnamed = """[...document.querySelectorAll("button, select, svg")].filter(e => !(e.getAttribute("aria-label")
      || e.getAttribute("aria-hidden") || e.hidden || e.textContent.trim() && e.tagName === "BUTTON" || e.closest("label")))"""
    assert tab.evaluate(f"{unnamed}.map(e => e.outerHTML)") == []
