"""What tests of pages share."""

from __future__ import annotations

import time


def text(tab, selector) -> str:
    """What a person reads there, on one line."""
    return " ".join(tab.locator(selector).inner_text().split())


def wait_until(tab, expression: str, seconds: float = 10.0) -> None:
    """Asked from outside: the page's policy forbids the evaluation that `wait_for_function` does inside."""
    end = time.monotonic() + seconds
    while not tab.evaluate(expression):
        assert time.monotonic() < end, f"not within {seconds} seconds: {expression}"
        time.sleep(0.02)
