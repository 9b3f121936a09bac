"""The report of a retrofit, as JSON, without what its page does not draw: two whole inspections would be megabytes."""

from __future__ import annotations

import base64
import math
from typing import Any

PICTURE_BYTES = 900_000
"""What the attention patterns of both sides may take in the page, written in base64."""

MOST_LOGGED = 1000
"""Lines of the log without an evaluation that are kept; a curve is no wider than that."""

SITE_FIELDS = ("site", "layer", "infinity_norm", "kurtosis", "int8_bits_left")


def slim(report: dict[str, Any]) -> dict[str, Any]:
    """A copy with one tensor a layer, one sequence's attention, and a log of bounded length."""
    sides = {side: report[side] for side in ("before", "after") if report.get(side)}
    site = _drawn_site(report["before"]["inspect"])
    tokens = _tokens_that_fit([_first_sequence(side["inspect"]) for side in sides.values()])
    slimmed = {name: side | {"inspect": _inspection(side["inspect"], site, tokens)} for name, side in sides.items()}
    return report | slimmed | {"log": _thinned(report.get("log") or [])}


def _drawn_site(inspection: dict[str, Any]) -> str:
    """The FFN's output, or for a model where none was found the tensor of its headline."""
    found = any(row["site"] == "ffn_output" for row in inspection["sites"])
    return "ffn_output" if found else str(inspection["headline"]["infinity_site"])


def _inspection(inspection: dict[str, Any], site: str, tokens: int) -> dict[str, Any]:
    rows = [row for row in inspection["sites"] if row["site"] == site]
    verdict = inspection["verdict"]
    return {
        "model": inspection["model"],
        "data": inspection["data"],
        "verdict": {name: verdict[name] for name in ("severity", "sentence", "claims")},
        "sites": [{field: row[field] for field in SITE_FIELDS} for row in rows],
        "heads": [{name: _rounded(value) for name, value in row.items()} for row in inspection["heads"]],
        "head_measures": inspection["head_measures"],
        "pictures": {
            "sequences": inspection["pictures"]["sequences"][:1],
            "attention": [_cropped(entry, tokens) for entry in _first_sequence(inspection)],
        },
    }


def _rounded(value: Any) -> Any:
    return [round(share, 4) for share in value] if isinstance(value, list) else value


def _first_sequence(inspection: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry for entry in inspection["pictures"]["attention"] if entry["sequence"] == 0]


def _tokens_that_fit(sides: list[list[dict[str, Any]]]) -> int:
    """Of how many tokens the pattern of every head can be shown: many heads get smaller pictures."""
    heads = sum(len(entry["heads"]) for entries in sides for entry in entries)
    return math.isqrt(PICTURE_BYTES * 3 // 4 // max(heads, 1))


def _cropped(entry: dict[str, Any], tokens: int) -> dict[str, Any]:
    """The corner of the first tokens of each head's pattern, and its gate; values and updates are not drawn."""
    return {
        "layer": entry["layer"],
        "heads": [
            {"P": _corner(head["P"], tokens)} | ({"pi": head["pi"][:tokens]} if "pi" in head else {})
            for head in entry["heads"]
        ],
    }


def _corner(packed: dict[str, Any], tokens: int) -> dict[str, Any]:
    rows, columns = min(packed["rows"], tokens), min(packed["columns"], tokens)
    data, width = base64.b64decode(packed["data"]), packed["columns"]
    kept = b"".join(data[row * width : row * width + columns] for row in range(rows))
    return packed | {"rows": rows, "columns": columns, "data": base64.b64encode(kept).decode("ascii")}


def _thinned(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every n-th line, the last, and each that holds an evaluation."""
    every = math.ceil(len(log) / MOST_LOGGED) or 1
    last = len(log) - 1
    return [
        line
        for place, line in enumerate(log)
        if place % every == 0 or place == last or any(key.startswith("eval_") for key in line)
    ]
