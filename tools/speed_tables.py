"""Writes the tables of docs/speed.md from what `make bench` left in results/.

python -m tools.speed_tables
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tools.tables import write_between

DOCS, RESULTS = Path("docs/speed.md"), Path("results")


def row(cells: list[Any]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def table(head: list[str], rows: list[list[Any]]) -> str:
    return "\n".join([row(head), row(["---"] * len(head)), *(row(cells) for cells in rows)])


def made_on(figures: dict[str, Any]) -> str:
    machine = figures["machine"]
    versions = ", ".join(
        f"{name} {machine[name]}" for name in ("torch", "transformers", "onnxruntime", "openvino") if name in machine
    )
    return f"{machine['processor']}, {machine['threads']} of {machine['cores']} threads, {versions}."


def attention(figures: dict[str, Any]) -> str:
    parts = [made_on(figures)]
    for causal in (False, True):
        found = [entry for entry in figures["time"] if entry["causal"] == causal]
        if not found:
            continue
        names = [name for name in found[0]["forward"] if name != "sdpa_ms"]
        rows = []
        for entry in found:
            for what in ("forward", "forward and backward"):
                ratios = [f"{entry[what][name]:.2f}" if name in entry[what] else "-" for name in names]
                rows.append([entry["length"], entry["sequences"], what, f"{entry[what]['sdpa_ms']:.1f}", *ratios])
        title = "Causal" if causal else "No mask"
        parts.append(
            f"**{title}** ({found[0]['heads']} heads):\n\n" + table(["T", "sequences", "", "SDPA, ms", *names], rows)
        )
    names = [name for name in figures["memory"][0] if name not in ("length", "heads", "causal", "sdpa_mib")]
    rows = [
        [
            entry["length"],
            "yes" if entry["causal"] else "",
            f"{entry['sdpa_mib']:.0f}",
            *(f"{entry[name]:.2f}" for name in names),
        ]
        for entry in figures["memory"]
    ]
    parts.append(
        "**Peak memory**, forward and backward, one head:\n\n" + table(["T", "causal", "SDPA, MiB", *names], rows)
    )
    return "\n\n".join(parts)


def steps(figures: dict[str, Any]) -> str:
    names = list(figures["steps"][0]["ratios"])
    rows = [
        [entry["model"], entry["about"], f"{entry['dropout']:g}", f"{entry['sdpa_seconds']:.2f}",
         *(f"{entry['ratios'][name]:.3f}" for name in names)]
        for entry in figures["steps"]
    ]  # fmt: skip
    return made_on(figures) + "\n\n" + table(["model", "", "dropout", "SDPA, s", *names], rows)


def runtimes(figures: dict[str, Any]) -> str:
    names = list(figures["rows"][0]["milliseconds"])
    rows = [
        [f"{entry['sequences']} x {entry['length']}", *(f"{entry['milliseconds'][name]:.1f}" for name in names)]
        for entry in figures["rows"]
    ]
    return (
        made_on(figures)
        + f" The export took {figures['export_seconds']:.0f} s.\n\n"
        + table(["texts, ms", *names], rows)
    )


def startup(figures: dict[str, Any]) -> str:
    seconds = figures["seconds"]
    return table(["", "seconds"], [[f"`{name}`", f"{value:.2f}"] for name, value in seconds.items()])


def main() -> None:
    for mark, write in (("attention", attention), ("model_steps", steps), ("runtimes", runtimes), ("startup", startup)):
        if (path := RESULTS / f"{mark}.json").is_file():
            write_between(DOCS, mark, write(json.loads(path.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
