"""A study as plots for a paper or a document, PNG and SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quietformer.config.study import BITS, VARIANT, bits_title, short
from quietformer.rendering.plots import plain, save_figure, subplots, use_matplotlib
from quietformer.results import numbers
from quietformer.results.study import StudyReport
from quietformer.results.study_table import StudyRow, label, metric_name

PANELS = (
    ("fp32", "fp32", False),
    ("quantized", "quantized", False),
    ("infinity_norm", "largest value", True),
    ("kurtosis", "kurtosis", True),
)
"""What is drawn over the grid, and whether on a logarithmic scale."""

NAMES = ("heat", "lines", "curves")

FAR = 1.5
"""Perplexities are drawn on a logarithmic scale if the largest is this many times the smallest."""

Rows = Sequence[StudyRow]


def draw_study(report: StudyReport, folder: Path) -> list[Path]:
    """A heat map of two fields, lines over one, and the curves over the steps of every setting."""
    use_matplotlib()
    for old in [path for name in NAMES for path in folder.glob(f"{name}*") if path.suffix in (".png", ".svg")]:
        old.unlink()  # of a study with other bits or fields, perhaps
    if not report.finished:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    axes = [field for field, values in report.study.grid.items() if len(values) > 1]
    drawn = []
    # Bits that are no axis of the grid have a plot each.
    asked = [""] if BITS in axes else list(dict.fromkeys(row.bits for row in report.rows))
    for bits in asked:
        chosen = [row for row in report.rows if bits in ("", row.bits)]
        ending = f"-{bits}" if len(asked) > 1 else ""
        if len(axes) == 2:
            drawn += save_figure(_heat(report, chosen, axes), folder / f"heat{ending}")
        elif len(axes) == 1 and axes[0] != VARIANT:
            drawn += save_figure(_lines(report, chosen, axes[0]), folder / f"lines{ending}")
    if any(run.result is not None and run.result.curve for run in report.trials):
        drawn += save_figure(_curves(report), folder / "curves")
    return drawn


def _title(report: StudyReport, rows: Rows, what: str) -> str:
    if what not in ("fp32", "quantized"):
        return what
    bits = {row.bits for row in rows}
    return f"{metric_name(report.metric)}, {bits_title(bits.pop()) if what == 'quantized' and len(bits) == 1 else what}"


def _wide(values: list[float]) -> bool:
    known = [value for value in values if math.isfinite(value) and value > 0]
    return bool(known) and max(known) > FAR * min(known)


def _heat(report: StudyReport, rows: Rows, axes: list[str]) -> Any:
    from matplotlib.colors import LogNorm

    grid = report.study.grid
    figure, places = subplots(1, len(PANELS), 2.3)
    for axis, (key, what, log) in zip(places[0], PANELS, strict=True):
        values = np.full((len(grid[axes[0]]), len(grid[axes[1]])), np.nan)
        words = {}
        for row in rows:
            at = grid[axes[0]].index(row.at[axes[0]]), grid[axes[1]].index(row.at[axes[1]])
            values[at] = _mean(row, key)
            words[at] = _word(row, key)
        known = values[np.isfinite(values)]
        scale = LogNorm() if known.size and known.min() > 0 and (log or _wide(known.tolist())) else None
        rising = report.better == "lower" or log  # darker is worse
        axis.imshow(values, cmap="Blues" if rising else "Blues_r", norm=scale, aspect="auto")
        for (i, j), value in np.ndenumerate(values):
            dark = _share(values, value, scale is not None) > 0.55
            ink = "white" if dark == rising and math.isfinite(value) else "black"
            text = numbers.rough(value) if math.isfinite(value) else words.get((i, j), "–")
            axis.text(j, i, text, ha="center", va="center", fontsize=6, color=ink)
        axis.set_xticks(range(values.shape[1]), [plain(value) for value in grid[axes[1]]], fontsize=6)
        axis.set_yticks(range(values.shape[0]), [plain(value) for value in grid[axes[0]]], fontsize=6)
        axis.set_xlabel(short(axes[1]))
        axis.set_title(_title(report, rows, what), fontsize=8)
    places[0, 0].set_ylabel(short(axes[0]))
    return figure


def _mean(row: StudyRow, key: str) -> float:
    found = row.spread(key)
    return math.nan if found is None or found.mean is None else found.mean


def _std(row: StudyRow, key: str) -> float:
    """Of a single run there is none: a bar would claim that seeds agree."""
    found = row.spread(key)
    return math.nan if row.runs < 2 else 0.0 if found is None else found.std or 0.0


def _word(row: StudyRow, key: str) -> str:
    """What to write where there is no number: a model that gives none is another thing than a run that failed."""
    if not row.runs:
        return "failed"
    return "broken" if row.spread(key) is not None and math.isnan(_mean(row, key)) else "–"


def _share(values: Any, value: float, log: bool) -> float:
    """Where a value lies between the smallest and the largest."""
    if not math.isfinite(value):
        return 0.0
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if high <= low:
        return 0.0
    return math.log(value / low) / math.log(high / low) if log else (value - low) / (high - low)


def _lines(report: StudyReport, rows: Rows, field: str) -> Any:
    """Over one field: quality with and without quantization, largest value, kurtosis."""
    figure, places = subplots(1, 3, 2.3)
    order = list(range(len(rows)))
    names = [plain(row.at[field]) for row in rows]

    def draw(axis: Any, key: str, text: str) -> None:
        """A gap where there is no number, and above it why."""
        means = [_mean(row, key) for row in rows]
        axis.errorbar(order, means, [_std(row, key) for row in rows], fmt="o-", ms=3, capsize=2, label=text)
        for i in order:
            if math.isnan(means[i]):
                axis.text(
                    i, 0.97, f"✗ {_word(rows[i], key)}", transform=axis.get_xaxis_transform(), rotation=90,
                    ha="center", va="top", fontsize=6, color="firebrick",
                )  # fmt: skip

    draw(places[0, 0], "fp32", "fp32")
    draw(places[0, 0], "quantized", "quantized" if field == BITS else bits_title(rows[0].bits))
    draw(places[0, 1], "infinity_norm", "largest value")
    draw(places[0, 2], "kurtosis", "kurtosis")
    places[0, 0].legend(frameon=False, fontsize=7)
    if report.better == "lower" and _wide([_mean(row, key) for row in rows for key in ("fp32", "quantized")]):
        places[0, 0].set_yscale("log")
    titles = (metric_name(report.metric), "largest value", "kurtosis")
    for axis, title in zip(places[0], titles, strict=True):
        axis.set_xticks(order, names, fontsize=6, rotation=0 if len(order) < 7 else 45)
        axis.set_xlabel(short(field))
        axis.set_title(title, fontsize=8)
    return figure


def _curves(report: StudyReport) -> Any:
    """Loss and the largest value over the steps: a colour for each setting, a line for each run."""
    import matplotlib.pyplot as plt

    figure, places = subplots(1, 2, 2.4)
    colours: dict[str, Any] = {}
    for run in report.trials:
        if run.result is None or not run.result.curve:
            continue
        name = plain(label(run.at))
        new = name not in colours
        colour = colours.setdefault(name, plt.get_cmap("tab20")(len(colours) % 20))
        for axis, key in zip(places[0], ("loss", "ffn_infinity_norm"), strict=True):
            curve = ((point.step, getattr(point, key)) for point in run.result.curve)
            points = [(step, value) for step, value in curve if value is not None]
            if points:
                steps, values = zip(*points, strict=True)
                axis.plot(steps, values, lw=0.9, color=colour, label=name if new else None)
    places[0, 0].set(xlabel="step", title="training loss")
    places[0, 1].set(xlabel="step", title="largest FFN output", yscale="log")
    if len(colours) <= 12:
        places[0, 0].legend(frameon=False, fontsize=6)
    return figure
