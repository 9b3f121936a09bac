"""Two sides set beside each other: the table that people read first, and the same in words."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from quietformer.analysis.evaluate import Reference
from quietformer.results.cost import SCALES, cost

LATENCY_NOISE, SIZE_NOISE = 0.15, 0.02
"""Changes within these shares are the machine's, or a gate's few weights, and neither good nor bad news."""


def verdict_on(before: dict[str, Any], after: dict[str, Any], reference: Reference) -> str:
    """What INT8 still costs, against the original; a run that healed nothing must not sound as if it had."""
    evaluation = reference.evaluation
    took, lost = (
        cost(evaluation.value, _integer_value(side, evaluation.primary)[0], evaluation.better)
        for side in (before, after)
    )
    nothing, little, broken = SCALES[evaluation.better]
    if lost is None or took is None:
        return "There is nothing to compare with."
    if lost <= nothing:
        return "Healed: INT8 costs next to nothing now."
    if lost <= little:
        return "Healed: INT8 costs a little now."
    again = "more steps and more text of its own kind may help"
    if lost > broken:
        return f"INT8 still breaks it; {again}."
    if lost <= took / 2:
        back = "Nearly all" if math.isinf(took) else f"{1 - lost / took:.0%}"
        return f"{back} of what INT8 took is back; it still costs some quality, and {again}."
    return f"INT8 still costs it quality; {again}."


def _integer_value(side: dict[str, Any], primary: str) -> tuple[float | None, str]:
    """The primary measure of INT8 with per-channel weights, real where there is an export."""
    real = (side["real"] or {}).get("per_channel")
    return (
        (real[primary], "real INT8") if real else (side["simulated"]["per_channel"][primary]["mean"], "simulated INT8")
    )


def side_in_words(side: dict[str, Any], reference: Reference) -> str:
    """`real INT8 has cosine 0.1921 (floating point 1.0000); FFN outputs reach 195, kurtosis up to 40,727`."""
    primary = reference.evaluation.primary
    value, what = _integer_value(side, primary)
    places = 2 if primary == "perplexity" else 4
    shown = "broken" if value is None else f"{value:.{places}f}"
    reach, kurtosis = extremes(side["inspect"])
    return (
        f"{what} has {primary} {shown} (floating point {side['float'][primary]:.{places}f}); FFN outputs reach {reach:,.3g}, "
        f"kurtosis up to {kurtosis:,.0f}"
    )


def extremes(inspected: dict[str, Any], site: str = "ffn_output") -> tuple[float, float]:
    """The largest magnitude of any layer, and the largest kurtosis."""
    rows = [row for row in inspected["sites"] if row["site"] == site]
    reach = max((max(abs(row["min"]), abs(row["max"])) for row in rows), default=math.nan)
    return reach, max((row["kurtosis"] or 0.0 for row in rows), default=math.nan)


def comparison(before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, Any]]:
    """The table that people read first."""
    rows: list[dict[str, Any]] = []

    def row(what: str, pick: Callable[[dict[str, Any]], Any], better: str, noise: float = 0.0) -> None:
        values = [pick(side) for side in (before, after)]
        if any(value is not None for value in values):
            rows.append({"what": what, "before": values[0], "after": values[1], "better": better, "noise": noise})

    row("largest FFN output", lambda side: extremes(side["inspect"])[0], "lower")
    row("largest kurtosis of FFN outputs", lambda side: extremes(side["inspect"])[1], "lower")
    for measure in before["float"]:
        direction = "lower" if measure in ("perplexity", "loss") else "higher"
        row(f"floating point: {measure}", lambda side, m=measure: side["float"].get(m), direction)  # type: ignore[misc]
        for weights in ("per_tensor", "per_channel"):
            label = weights.replace("_", "-")
            row(
                f"simulated W8A8, {label} weights: {measure}",
                lambda side, w=weights, m=measure: side["simulated"][w][m]["mean"],  # type: ignore[misc]
                direction,
            )
            row(
                f"real INT8, {label} weights: {measure}",
                lambda side, w=weights, m=measure: ((side["real"] or {}).get(w) or {}).get(m),  # type: ignore[misc]
                direction,
            )
    row("INT8 model, MB", lambda side: _size(side, "int8"), "lower", SIZE_NOISE)
    row("floating point model, MB", lambda side: _size(side, "fp32"), "lower", SIZE_NOISE)
    for place, one in enumerate((after["real"] or {}).get("latency", [])):
        what = f"batch {one['batch']}" + (f", {one['length']} tokens" if one["length"] else "")
        for label, kind in (("INT8", "onnx_int8_ms"), ("floating point ONNX", "onnx_fp32_ms")):
            row(
                f"{label}, ms ({what})",
                lambda side, p=place, k=kind: _latency(side, p, k),  # type: ignore[misc]
                "lower",
                LATENCY_NOISE,
            )
    return rows


def _size(side: dict[str, Any], kind: str) -> float | None:
    size = ((side["real"] or {}).get("bytes") or {}).get(kind)
    return None if size is None else size / 1e6


def _latency(side: dict[str, Any], place: int, kind: str) -> float | None:
    rows = (side["real"] or {}).get("latency", [])
    return rows[place][kind] if place < len(rows) else None
