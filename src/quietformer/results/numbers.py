"""Numbers as people read them: the only place that formats them. rendering/assets/numbers.js has the same for pages."""

from __future__ import annotations

import re

from pydantic import JsonValue

BROKEN, MISSING = "broken", "-"
PERCENT_METRICS = ("top1", "agreement")
"""Metrics that tables of studies show in per cent."""
FOUR_PLACES = ("cosine", "neighbour_agreement", "ndcg10", "wer", "token_agreement", "agreement", "top1")
TWO_PLACES = ("perplexity", "loss")


def metric(value: float | None, name: str) -> str:
    """A metric: perplexities to two places, shares and cosines to four; None is a model that gives no number."""
    if value is None:
        return BROKEN
    if name not in TWO_PLACES:
        return f"{value:.4f}"
    return _short_exponent(f"{value:.1e}") if value >= 1e6 else f"{value:,.2f}"


def measured(value: float | None, name: str) -> str:
    """A metric by its name, and anything else to one place; None was not measured."""
    if value is None:
        return MISSING
    return metric(value, name) if name in (*FOUR_PLACES, *TWO_PLACES) else f"{value:,.1f}"


def norm(value: float | None) -> str:
    """The largest magnitude of a tensor."""
    return MISSING if value is None else f"{value:.2f}"


def deviation(value: float) -> str:
    """A standard deviation of a metric: small beside it, so it has four places."""
    return f"{value:.4f}"


def kurtosis(value: float | None) -> str:
    return MISSING if value is None else f"{value:,.1f}"


def whole(value: float | None) -> str:
    """A count, or a number whose places do not matter: 40,727."""
    return MISSING if value is None else f"{value:,.0f}"


def one_place(value: float | None) -> str:
    """Bits, decibels, milliseconds, minutes."""
    return MISSING if value is None else f"{value:.1f}"


def two_places(value: float | None) -> str:
    """A rate, a factor, a score."""
    return MISSING if value is None else f"{value:.2f}"


def percent(share: float | None, places: int = 1) -> str:
    """0.253 -> 25.3%."""
    return MISSING if share is None else f"{share:.{places}%}"


def rough(value: float | None, digits: int = 3) -> str:
    """Three digits that count, or more before the point: 40,727, 195, 12.3, 0.0123, 1.23e-5."""
    if value is None:
        return MISSING
    size = abs(value)
    if size >= 1e9:
        return _short_exponent(f"{value:.{digits - 1}e}")
    if value == round(value, 0) or size >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else _short_exponent(f"{value:.{digits}g}")


def two_digits(value: float) -> str:
    """A learning rate, a number of epochs."""
    return f"{value:.2g}"


def logged_loss(value: float) -> str:
    """A loss as training tells it, in which the third place moves last."""
    return f"{value:.3f}"


def to_three_digits(value: float) -> float:
    """1234.5 -> 1230.0."""
    return float(f"{value:.3g}")


def tiny(value: float) -> str:
    """A difference that should be nothing: 1.2e-06."""
    return f"{value:.1e}"


def span(low: float, high: float) -> str:
    """`-1.5 .. 3`; minus zero is zero."""
    return f"{rough(low + 0.0)} .. {rough(high + 0.0)}"


def counted(number: int, noun: str) -> str:
    """`1 thread`, `1,200 steps`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def mean_and_std(mean: float | None, std: float | None, name: str = "", *, spread: bool = False) -> str:
    """`23.10 ± 0.20`, with as many places as the size of the number asks for."""
    if mean is None:
        return BROKEN
    std = std or 0.0
    if name in PERCENT_METRICS:
        mean, std = 100 * mean, 100 * std
    places = 0 if abs(mean) >= 1000 else 1 if abs(mean) >= 100 else 2
    if name == "cosine":
        places = 4  # what matters is its distance from one
    text = f"{mean:,.{places}f}"
    return f"{text} ± {std:,.{places}f}" if spread else text


def quoted(value: JsonValue) -> str:
    """A result of the paper's, unrounded: mean ± standard deviation where there are two numbers, else a list."""
    if isinstance(value, list):
        return (" ± " if len(value) == 2 else ", ").join(map(quoted, value))
    if isinstance(value, dict):
        return ", ".join(f"{name} {quoted(item)}" for name, item in value.items())
    return f"{value:.15g}" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def change(before: float, after: float | None, name: str) -> str:
    """From one metric to another: `+1.2 points` of a per cent, `× 3.2` from twice on, else `+8.5%`."""
    if after is None:
        return "no number"
    sign = "+" if after > before else "−"
    points, ratio = 100 * abs(after - before), after / before
    if name in PERCENT_METRICS:
        return "same" if points < 0.05 else f"{sign}{points:.1f} points"
    if ratio >= 2:
        return f"× {rough(ratio)}"
    return "same" if abs(ratio - 1) < 0.0005 else f"{sign}{100 * abs(ratio - 1):.1f}%"


def significant(value: float | None) -> str:
    """Four digits that count: 24.81, 0.9914."""
    return MISSING if value is None else f"{value:.4g}"


def megabytes(size: float) -> str:
    return f"{size / 1e6:.1f}"


def mebibytes(size: float) -> str:
    """What file managers call a megabyte."""
    return f"{size / 2**20:.1f}"


def millions(number: float, places: int = 1) -> str:
    """1312612 -> 1.3M."""
    return f"{number / 1e6:.{places}f}M"


def count(number: float) -> str:
    """1312612352 -> 1.31B."""
    return _scaled(number, ("", "k", "M", "B", "T"))


def flop(number: float) -> str:
    return f"{_scaled(number, (' ', ' k', ' M', ' G', ' T', ' P', ' E', ' Z'))}FLOP"


def size(number: float) -> str:
    """Bytes: 2.34 GB."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= unit:
            return f"{number / unit:.2f} {name}"
    return f"{number:.0f} B"


def duration(seconds: float) -> str:
    """In the unit that reads well: 4200 -> 1.2 hours."""
    for unit, name in ((365.25 * 86400, "years"), (86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds:.1f} seconds" if seconds >= 1 else f"{1000 * seconds:.0f} milliseconds"


def _short_exponent(text: str) -> str:
    """1.2e+06 -> 1.2e+6, as JavaScript writes it."""
    return re.sub(r"e([+-])0+", r"e\1", text)


def _scaled(number: float, units: tuple[str, ...]) -> str:
    power = 0
    while number >= 999.5 and power < len(units) - 1:
        number, power = number / 1000, power + 1
    return f"{number:.3g}{units[power]}"
