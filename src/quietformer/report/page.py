"""The page: a pure function of the figures, one file, nothing fetched."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from quietformer.files import write_text


def page(figures: dict[str, Any]) -> str:
    """The figures inside the page that draws them.

    Model names and tokens are other people's text. They reach the document only as JSON whose `<`, `>` and `&` are
    escaped, and the script puts them in as text, never as markup.
    """
    assets = files("quietformer.report") / "assets"
    data = json.dumps(figures, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        data = data.replace(character, f"\\u{ord(character):04x}")
    template = (assets / "page.html").read_text(encoding="utf-8")
    head, rest = template.split("/*STYLE*/")
    middle, rest = rest.split("/*DATA*/")
    before_script, tail = rest.split("/*SCRIPT*/")
    style = (assets / "page.css").read_text(encoding="utf-8")
    script = (assets / "page.js").read_text(encoding="utf-8")
    return head + style + middle + data + before_script + script + tail


def write_page(figures: dict[str, Any], path: Path) -> None:
    write_text(path, page(figures))
