"""The runs of a study as the table that papers print: one row a setting, mean and standard deviation over seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quietformer.analysis.cost import SCALES, cost, spread
from quietformer.study.design import BITS, EXPORTED, VARIANT, Study, short

Pick = Callable[[dict[str, Any]], float | None]
NAMED = 4
"""So many settings of a kind are named in a sentence."""
SHARES = ("top1", "agreement")
"""Measures that are shown in per cent."""


def study_rows(study: Study, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every point of the grid with its figures over seeds; a point of whose runs none came through has none."""
    rows = []
    for at in _points(results):
        of_point = [result for result in results if result["at"] == at]
        whole = [result for result in of_point if "failed" not in result]
        shared = {
            "runs": len(whole),
            "failed": [f"seed {result['seed']}: {result['failed']}" for result in of_point if "failed" in result],
        }
        for bits in study.measured.bits:
            place = {field: at[field] if field != BITS else bits for field in study.grid}
            row: dict[str, Any] = {"at": place, "bits": bits, **shared}
            rows.append(row | (_figures(whole, bits) if whole else {}))
    return rows


def _points(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for result in results:
        if result["at"] not in found:
            found.append(result["at"])
    return found


def _figures(runs: list[dict[str, Any]], bits: str) -> dict[str, Any]:
    primary = runs[0]["primary"]

    def over_seeds(pick: Pick) -> dict[str, float | None] | None:
        values = [pick(run) for run in runs]
        return None if all(value is None for value in values) else spread(values)

    return {
        "attention": runs[0]["attention"],
        "primary": primary,
        "better": runs[0]["better"],
        "float": spread([run["float"][primary] for run in runs]),
        "quantized": spread([run["quantized"][bits][primary]["mean"] for run in runs]),
        # Of the same model calibrated on other examples: how much of a difference is chance.
        "calibrations_std": over_seeds(lambda run: run["quantized"][bits][primary]["std"]),
        "real": _real(runs, primary) if bits == EXPORTED else None,
        "not_exported": [
            f"seed {run['seed']}: {run['real']['error']}" for run in runs if "error" in (run["real"] or {})
        ],
        "infinity_norm": over_seeds(lambda run: run["outliers"].get("infinity_norm")),
        "kurtosis": over_seeds(lambda run: run["outliers"].get("kurtosis")),
        "dead_rows": over_seeds(lambda run: _last(run, "dead_rows")),
        "most_dead_rows": over_seeds(lambda run: max(_points_of(run, "dead_rows"), default=None)),
        "gate_openness": over_seeds(lambda run: _last(run, "gate_openness")),
        "beside": {name: spread([run["beside"][name] for run in runs]) for name in runs[0]["beside"]},
        "seconds": over_seeds(lambda run: run["seconds"]),
        "paper": runs[0]["paper"],
    }


def _real(runs: list[dict[str, Any]], primary: str) -> dict[str, float | None] | None:
    """Of the runs that could be exported; a graph that cannot be is no broken model."""
    values = [run["real"]["figures"][primary] for run in runs if "figures" in (run["real"] or {})]
    return spread(values) if values else None


def _points_of(run: dict[str, Any], key: str) -> list[float]:
    return [point[key] for point in run["curve"] if point.get(key) is not None]


def _last(run: dict[str, Any], key: str) -> float | None:
    return next(iter(reversed(_points_of(run, key))), None)


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


VERBS = {"none": "costs next to nothing", "little": "costs a little", "harm": "costs quality", "broken": "breaks"}


def hardly_trained(row: dict[str, Any]) -> bool:
    """Whether it is no better than counting pairs, or than always giving the most frequent answer."""
    mean = (row.get("float") or {}).get("mean")
    known = [beside["mean"] for beside in (row.get("beside") or {}).values() if beside["mean"] is not None]
    if mean is None:
        return False
    return any(mean >= other if row["better"] == "lower" else mean <= other for other in known)


def _named(rows: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(label(row["at"]) for row in rows))
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def in_words(rows: list[dict[str, Any]]) -> str:
    """`W8A8 breaks vanilla (151.2 -> 212.0); costs next to nothing: gated (152.1 -> 152.3).`"""
    bits = {row["bits"] for row in rows}
    first = next(iter(row["bits"] for row in rows), "")
    chosen = [row for row in rows if row["bits"] == ("w8a8" if "w8a8" in bits else first)]
    parts = []
    for kind in ("broken", "harm", "little", "none"):
        hit = [row for row in chosen if effect(row) == kind]
        if hit:
            named = ", ".join(f"{label(row['at'])} ({_change(row)})" for row in hit[:NAMED])
            more = f" and {len(hit) - NAMED} more" if len(hit) > NAMED else ""
            parts.append(f"{VERBS[kind]}: {named}{more}")
    lost = [row for row in chosen if row["runs"] and effect(row) == "unknown"]
    if lost:
        parts.append(f"finds no number to begin with: {_named(lost)}")
    if not parts:
        return "No run came through."
    sentences = [f"{chosen[0]['bits'].upper()} {'; '.join(parts)}."]
    if poor := [row for row in chosen if hardly_trained(row)]:
        sentences.append(f"Hardly trained, so this says little of quantization: {_named(poor)}.")
    if failed := [row for row in chosen if row["failed"]]:
        sentences.append(f"Runs failed: {_named(failed)}.")
    return " ".join(sentences)


def _change(row: dict[str, Any]) -> str:
    return f"{shown(row['float'], row['primary'])} -> {shown(row['quantized'], row['primary'])}"


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
