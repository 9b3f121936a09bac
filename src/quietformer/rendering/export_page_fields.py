"""What the page of an export needs: its sentences and tables, and a point for each tool that was compared."""

from __future__ import annotations

from dataclasses import asdict

from pydantic import JsonValue

from quietformer.results import numbers
from quietformer.results.export import BaselineRow, ExportReport

FLOOR = 1e-4
"""A loss of quality below this is drawn as this: what is smaller is noise, and nothing has no logarithm."""


def export_fields(report: ExportReport) -> dict[str, JsonValue]:
    """The page shows the text of the terminal; only its plot reads numbers."""
    title, *sentences = report.sentences()
    tools = {f"  {row.name}: {row.error or row.what}" for row in report.baselines}
    return {
        "title": title,
        "subtitle": f"real INT8, {report.label}",
        "sentences": [line for line in sentences if line not in tools],
        "tables": [asdict(table) | {"left": sorted(table.left)} for table in report.tables()],
        "tools": [[row.name, row.error or row.what] for row in report.baselines],
        "metric": report.primary.replace("_", " "),
        "points": points(report),
        "command": report.command,
        "versions": ", ".join(f"{name} {version}" for name, version in report.versions.items()),
    }


def points(report: ExportReport) -> list[JsonValue]:
    """Speed against fp32 in ONNX Runtime, and the quality lost, of each tool that was timed; the fastest first.

    A tool is on the front if no other is at once faster and better.
    """
    base = next((row.fastest_ms for row in report.baselines if row.fastest_ms), None)
    placed = [
        (row, base / row.fastest_ms, max(lost, FLOOR))
        for row in report.baselines
        if base and row.fastest_ms and (lost := _lost(report, row)) is not None
    ]
    found: list[JsonValue] = []
    least = float("inf")
    for row, speed, lost in sorted(placed, key=lambda one: (-one[1], one[2])):
        front, least = lost < least, min(lost, least)
        assert row.metrics is not None
        value = numbers.metric(row.metrics[report.primary], report.primary)
        found.append({
            "name": row.name, "ours": row.ours, "speed": speed, "lost": lost, "front": front,
            "shown": [f"{numbers.two_places(speed)} ×", value, row.runtime or ""],
        })  # fmt: skip
    return found


def _lost(report: ExportReport, row: BaselineRow) -> float | None:
    """How much of the primary metric is lost: the difference, or for perplexities the relative rise."""
    before, after = report.fp32[report.primary], None if row.metrics is None else row.metrics[report.primary]
    if before is None or after is None:
        return None
    return before - after if report.better == "higher" else after / before - 1
