"""Marks that the tests of pages share."""

from __future__ import annotations

import pytest

in_browser = pytest.mark.xdist_group("browser")


def on_every_screen(test):
    """A phone and a desktop, each light and dark."""
    test = pytest.mark.parametrize("width", [390, 1200])(test)
    return in_browser(pytest.mark.parametrize("scheme", ["light", "dark"])(test))
