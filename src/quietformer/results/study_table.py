"""The runs of a study as the table that papers print: one row a setting, mean and standard deviation over seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quietformer.config.study import BITS, VARIANT, short
from quietformer.results.cost import SCALES, cost

SHARES = ("top1", "agreement")
"""Measures that are shown in per cent."""


def label(at: dict[str, Any]) -> str:
    """`gamma -0.03, zeta 1.0`; a variant by its name."""
    return ", ".join(
        str(value) if field in (VARIANT, BITS) else f"{short(field)} {value}" for field, value in at.items()
    )


def effect(row: dict[str, Any]) -> str:
    """What quantization does at this point: `none`, `little`, `harm`, `broken`, or `unknown`."""
    if "float" not in row or row["float"] is None:
        return "unknown"
    lost = cost(row["float"]["mean"], (row["quantized"] or {}).get("mean"), row["better"])
    if lost is None:
        return "unknown"
    nothing, little, broken = SCALES[row["better"]]
    return "none" if lost <= nothing else "little" if lost <= little else "harm" if lost <= broken else "broken"


def hardly_trained(row: dict[str, Any]) -> bool:
    """Whether it is no better than counting pairs, or than always giving the most frequent answer."""
    mean = (row.get("float") or {}).get("mean")
    known = [beside["mean"] for beside in (row.get("beside") or {}).values() if beside["mean"] is not None]
    if mean is None:
        return False
    return any(mean >= other if row["better"] == "lower" else mean <= other for other in known)


def shown(figure: dict[str, float | None] | None, measure: str = "", *, spread: bool = False) -> str:
    """A mean as people read it, with its standard deviation if that is asked for."""
    if figure is None:
        return "-"
    if figure["mean"] is None:
        return "broken"
    mean, std = figure["mean"], figure["std"] or 0.0
    if measure in SHARES:
        mean, std = 100 * mean, 100 * std
    places = 0 if abs(mean) >= 1000 else 1 if abs(mean) >= 100 else 2
    if measure == "cosine":
        places = 4  # what matters of it is how far it is from one
    text = f"{mean:,.{places}f}"
    return f"{text} ± {std:,.{places}f}" if spread else text


def measure_name(primary: str) -> str:
    """A measure as people call it."""
    return {"top1": "accuracy"}.get(primary, primary)


Cell = Callable[[dict[str, Any]], str]


def columns(rows: list[dict[str, Any]]) -> list[tuple[str, Cell]]:
    """Titles and what to print under each, of what the rows have; the first has no title."""
    primary = next((row["primary"] for row in rows if "primary" in row), "")
    name = measure_name(primary) + (", %" if primary in SHARES else "")
    beside: dict[str, Any] = next((row["beside"] for row in rows if "beside" in row), {})
    several = len({row["bits"] for row in rows}) > 1

    def mean(key: str) -> Cell:
        measure = primary if key in ("float", "quantized", "real") else ""
        return lambda row: shown(row.get(key), measure, spread=row["runs"] > 1)

    found: list[tuple[str, Cell]] = [("", lambda row: label(row["at"]))]
    if several and not any(BITS in row["at"] for row in rows):
        found.append((BITS, lambda row: row["bits"].upper()))
    quantized = "quantized" if several else next((row["bits"].upper() for row in rows), "quantized")
    found += [(name, mean("float")), (quantized, mean("quantized"))]
    if any(row.get("real") for row in rows):
        found.append(("real INT8", mean("real")))
    found += [("largest value", mean("infinity_norm")), ("kurtosis", mean("kurtosis"))]
    if any((row.get("most_dead_rows") or {}).get("mean") for row in rows):
        found.append(("dead rows, %", lambda row: shown(_times(row.get("dead_rows"), 100))))
    if any(row.get("gate_openness") for row in rows):
        found.append(("gate openness", lambda row: shown(row.get("gate_openness"))))
    for key, title in (("bigram_perplexity", "bigram"), ("majority_accuracy", "largest class, %")):
        if key in beside:
            scale = 100 if "%" in title else 1
            found.append((title, lambda row, k=key, s=scale: shown(_times((row.get("beside") or {}).get(k), s))))  # type: ignore[misc]
    found.append(("minutes", lambda row: shown(_times(row.get("seconds"), 1 / 60))))
    found.append(("runs", lambda row: str(row["runs"]) + (f" ({len(row['failed'])} failed)" if row["failed"] else "")))
    return found


def _times(figure: dict[str, float | None] | None, scale: float) -> dict[str, float | None] | None:
    if figure is None:
        return None
    return {name: None if value is None else value * scale for name, value in figure.items()}


LEGEND = {
    "largest value": "of an activation; a few huge ones stretch INT8's scale until the rest rounds to nothing: less is better",
    "kurtosis": "how much of an activation's spread is outliers; 3 for a normal distribution: less is better",
    "real INT8": "the exported file, computed in integers",
    "dead rows, %": "rows of attention that give no weight to anything, at the last step they were counted",
    "gate openness": "1 lets a head through as it is, 0 shuts it; at the last step it was looked at",
    "bigram": "the perplexity that counting which token follows which would reach",
    "largest class, %": "what always answering the most frequent class would reach",
}


def legend(rows: list[dict[str, Any]]) -> list[str]:
    """What the columns mean that people may not know."""
    return [f"{title}: {LEGEND[title]}" for title, _ in columns(rows) if title in LEGEND]


def failures(rows: list[dict[str, Any]]) -> list[str]:
    """What failed, each run once: its reason stands at every row of its setting, one for each number of bits."""
    setting = [({field: value for field, value in row["at"].items() if field != BITS}, row) for row in rows]
    return list(dict.fromkeys(f"{label(at)}, {text}" for at, row in setting for text in row["failed"]))


def one_line(result: dict[str, Any]) -> str:
    """A run as it ends."""
    if "failed" in result:
        return f"{result['name']} failed: {result['failed']}"
    primary = result["primary"]
    quantized = ", ".join(
        f"{bits.upper()} {shown(found[primary], primary)}" for bits, found in result["quantized"].items()
    )
    floating = shown({"mean": result["float"][primary], "std": 0.0}, primary)
    outliers = result["outliers"]
    reach = outliers.get("infinity_norm")
    norm = "" if reach is None else f"; largest value {reach:.4g}"
    return f"{result['name']}: {primary} {floating}, {quantized}{norm}; {result['seconds'] / 60:.1f} min"
