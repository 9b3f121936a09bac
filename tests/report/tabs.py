"""What tests of pages share."""

from __future__ import annotations


def text(tab, selector) -> str:
    """What a person reads there, on one line."""
    return " ".join(tab.locator(selector).inner_text().split())
