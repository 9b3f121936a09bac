"""The runs of a study as rows: one per setting, mean and standard deviation over seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quietformer.config.study import BITS, EXPORTED, Study
from quietformer.results.cost import spread
from quietformer.results.study_table import effect, hardly_trained, label, shown

Pick = Callable[[dict[str, Any]], float | None]

NAMED = 4
"""So many settings of a kind are named in a sentence."""


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


VERBS = {"none": "costs next to nothing", "little": "costs a little", "harm": "costs quality", "broken": "breaks"}


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
