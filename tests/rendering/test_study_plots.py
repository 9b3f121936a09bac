"""The plots of a study: what has no number is seen to have none."""

from __future__ import annotations

import math

import pytest

from quietformer.rendering import study_plots as study_plots
from quietformer.rendering.plots import use_matplotlib
from tests.rendering.test_study_page import GAMMA, ZETA, failed, report, trial

RATE = "optimizer.learning_rate"
RATES = [1e-3, 2e-3, 3e-3, 4e-3]


@pytest.fixture(autouse=True)
def no_screen():
    use_matplotlib()


def over_rates(seeds=(0, 1)):
    """Four settings: sound, broken by quantization, failed, sound."""
    results = []
    for rate in RATES:
        at = {RATE: rate}
        for seed in seeds:
            results.append(
                failed(at, seed)
                if rate == 3e-3
                else trial(at, seed, 20.0, {"w8a8": None if rate == 2e-3 else 21.0 + seed})
            )
    return report(results, grid={RATE: RATES}, seeds=seeds)


def series(axis, text):
    container = next(one for one in axis.containers if one.get_label() == text)
    return container[0].get_ydata(), container[2][0].get_segments()


def test_a_line_has_a_gap_where_quantization_breaks_or_a_run_failed():
    study = over_rates()
    axis = study_plots._lines(study, study.rows, RATE).axes[0]
    values, bars = series(axis, "W8A8")
    assert [math.isnan(value) for value in values] == [False, True, True, False]
    assert [text.get_text() for text in axis.texts].count("✗ broken") == 1
    assert [text.get_text() for text in axis.texts].count("✗ failed") == 2  # in fp32 as well
    assert [text.get_text() for text in axis.get_xticklabels()] == [str(rate) for rate in RATES]
    assert bars[0][0][1] < values[0] < bars[0][1][1]


def test_a_single_run_has_no_bar_that_would_say_seeds_agree():
    study = over_rates(seeds=(0,))
    _, bars = series(study_plots._lines(study, study.rows, RATE).axes[0], "W8A8")
    assert not any(math.isfinite(y) for segment in bars for _, y in segment)


def test_a_heat_map_tells_what_broke_from_what_failed_and_from_what_was_not_asked_for():
    results = [
        trial({GAMMA: 0.0, ZETA: 1.0}, 0, 20.0, {"w8a8": 21.0}),
        trial({GAMMA: 0.0, ZETA: 1.03}, 0, 20.0, {"w8a8": None}),
        failed({GAMMA: -0.1, ZETA: 1.0}, 0),
    ]
    study = report(results, grid={GAMMA: [0.0, -0.1], ZETA: [1.0, 1.03]}, seeds=(0,))
    quantized = study_plots._heat(study, study.rows, [GAMMA, ZETA]).axes[1]
    assert [text.get_text() for text in quantized.texts] == ["21", "broken", "failed", "–"]


def test_names_are_drawn_as_they_are_and_old_plots_go(tmp_path):
    results = [trial({"variant": name}, 0, 20.0, {"w8a8": 21.0}) for name in ("$x^$", "a$b$c")]
    for old in ("lines-w6a6.svg", "heat.png"):
        (tmp_path / old).write_text("old")
    (tmp_path / "mine.svg").write_text("not ours")
    drawn = study_plots.draw_study(report(results, seeds=(0,)), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curves.png", "curves.svg", "mine.svg"]
    assert {path.name for path in drawn} == {"curves.png", "curves.svg"}
