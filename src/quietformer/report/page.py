"""The page: a pure function of the figures, one file, nothing fetched."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from quietformer.files import write_text
from quietformer.report.page_data import slim
from quietformer.report.page_fields import page_fields
from quietformer.results.base import Report

SLOT = re.compile(r"/\*(STYLE|MAIN|DATA|SCRIPT)\*/")
"""Where the frame of every page takes what is particular to one."""

ASSETS = {
    "inspect": ("shared", "drawing", "inspect"),
    "quantize": ("shared", "quantize"),
    "retrofit": ("shared", "drawing", "charts", "retrofit"),
    "study": ("shared", "drawing", "charts", "study"),
    "paper": ("shared", "paper"),
}
"""The styles and scripts of each kind of page, in their order; the last also has the page's sections."""


def page(report: Report | dict[str, Any]) -> str:
    """The figures inside the page of their kind, or else that of `inspect`.

    Names of models, sites and tokens are other people's text. They reach the document only as JSON whose `<`, `>` and
    `&` are escaped, and the script puts them in as text, never as markup.
    """
    figures = page_fields(report) if isinstance(report, Report) else report
    kind = figures.get("kind")
    kind = kind if kind in ASSETS else "inspect"
    shown = slim(figures) if kind == "retrofit" else figures
    data = json.dumps(shown, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        data = data.replace(character, f"\\u{ord(character):04x}")
    parts = {
        "STYLE": "".join(_asset(f"{name}.css") for name in ASSETS[kind]),
        "MAIN": _asset(f"{kind}.html"),
        "DATA": data,
        "SCRIPT": "".join(_asset(f"{name}.js") for name in ASSETS[kind]),
    }
    # One pass over the frame alone: a name that looks like a slot stays a name.
    return SLOT.sub(lambda slot: parts[slot[1]], _asset("frame.html"))


def _asset(name: str) -> str:
    return (files("quietformer.report") / "assets" / name).read_text(encoding="utf-8")


def write_page(report: Report | dict[str, Any], path: Path) -> None:
    write_text(path, page(report))
