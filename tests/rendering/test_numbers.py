"""Numbers that a page formats itself are written as results/numbers.py writes them."""

from __future__ import annotations

import json
import random
import re
from importlib.resources import files

import pytest

from quietformer.results import numbers

ASSETS = files("quietformer.rendering") / "assets"
SCRIPTS = sorted(path.name for path in ASSETS.iterdir() if path.name.endswith(".js"))
SAME = {
    "x => number(x)": numbers.rough,
    "x => number(x, 2)": lambda x: numbers.rough(x, 2),
    "x => shown(x, 'perplexity')": lambda x: numbers.metric(x, "perplexity"),
    "x => shown(x, 'loss')": lambda x: numbers.metric(x, "loss"),
    "x => shown(x, 'cosine')": lambda x: numbers.metric(x, "cosine"),
    "onePlace": numbers.one_place,
    "twoPlaces": numbers.two_places,
    "wholeNumber": numbers.whole,
    "x => percent(x)": numbers.percent,
    "x => percent(x, 0)": lambda x: numbers.percent(x, 0),
}
"""What scripts call, and what it must agree with."""


def values() -> list[float]:
    """Of every size and both signs, integers and the ends of each rule among them; halves, which are rounded to even in
    Python and up in a browser, are not."""
    draw = random.Random(0)
    sizes = [10 ** draw.uniform(-9, 10) for _ in range(400)] + [draw.random() for _ in range(100)]
    ends = [
        1.0,
        9.996,
        9.9949,
        10.0,
        99.96,
        99.94,
        100.0,
        999.6,
        1000.0,
        1e-4,
        9.9996e-5,
        999_999.996,
        1e6,
        1e9,
        999_999_999.9,
    ]
    whole = [0, 7, 12, 1234, 22_713_216]
    return [*sizes, *(-size for size in sizes[:200]), *ends, *whole]


@pytest.mark.parametrize("script", sorted(SAME))
def test_a_page_writes_a_number_as_a_table_does(script, browser):
    tab = browser.new_page()
    tab.add_script_tag(content=(ASSETS / "numbers.js").read_text())
    written = tab.evaluate(f"given => JSON.parse(given).map({script})", json.dumps(values()))
    tab.close()
    assert written == [SAME[script](value) for value in values()]


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "numbers.js"])
def test_scripts_format_numbers_in_one_place(name):
    script = (ASSETS / name).read_text()
    assert not re.search(r"toFixed|toLocaleString|toExponential|Intl\.", script), "numbers.js formats numbers"
