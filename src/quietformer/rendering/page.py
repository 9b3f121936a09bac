"""The page: a pure function of a report, one file, nothing fetched."""

from __future__ import annotations

import html
import json
import re
from importlib.resources import files

from quietformer.rendering.export_page_fields import export_fields
from quietformer.rendering.slim_retrofit import slim
from quietformer.rendering.study_page_fields import page_fields
from quietformer.results.base import Report
from quietformer.results.export import ExportReport

SLOT = re.compile(r"/\*(STYLE|MAIN|DATA|SCRIPT)\*/")
"""Where the frame of every page takes what is particular to one."""

ASSETS = {
    "inspect": ("shared", "drawing", "inspect"),
    "export": ("shared", "drawing", "charts", "export"),
    "quantize": ("shared", "quantize"),
    "retrofit": ("shared", "drawing", "charts", "retrofit"),
    "study": ("shared", "drawing", "charts", "study"),
    "paper": ("shared", "paper"),
}
"""The styles and scripts of each kind of page, in their order; the last also has the page's sections."""


def page(report: Report) -> str:
    """The report inside the page of its kind; a kind that has no page of its own gets its words and tables.

    Names of models, sites and tokens are other people's text. They reach the document only as JSON whose `<`, `>` and
    `&` are escaped, and the script puts them in as text, never as markup.
    """
    kind = report.kind
    if kind not in ASSETS:
        return _plain_page(report)
    fields = export_fields(report) if isinstance(report, ExportReport) else page_fields(report)
    data = json.dumps(slim(fields) if kind == "retrofit" else fields, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        data = data.replace(character, f"\\u{ord(character):04x}")
    parts = {
        "STYLE": "".join(_asset(f"{name}.css") for name in ASSETS[kind]),
        "MAIN": _asset(f"{kind}.html"),
        "DATA": data,
        "SCRIPT": "".join(_asset(f"{name}.js") for name in ("numbers", *ASSETS[kind])),
    }
    # One pass over the frame alone: a name that looks like a slot stays a name.
    return SLOT.sub(lambda slot: parts[slot[1]], _asset("frame.html"))


def _asset(name: str) -> str:
    return (files("quietformer.rendering") / "assets" / name).read_text(encoding="utf-8")


def _plain_page(report: Report) -> str:
    """Sentences and tables, nothing to click on."""
    parts = [f"<p>{html.escape(line)}</p>" for line in report.sentences()]
    for table in report.tables():
        head = "".join(f"<th>{html.escape(column)}</th>" for column in table.columns)
        rows = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in table.rows]
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        parts.append(f"<h2>{html.escape(table.title)}</h2><table><tr>{head}</tr>{body}</table>")
    parts += [f"<p>{html.escape(line)}</p>" for line in report.footnotes()]
    title = html.escape(f"Quietformer: {report.kind}")
    return f'<!doctype html><meta charset="utf-8"><title>{title}</title><style>{_asset("shared.css")}</style>{"".join(parts)}\n'
