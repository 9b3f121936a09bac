"""The tables and plots of docs/science.md, and the figures that `quietformer paper` shows, from finished studies.

    python -m tools.study_tables NAME=DIR ...

NAME is the mark of the table in the document; DIR a folder that `compare` or `sweep` has left. The figures are kept, without the
curves of single runs, in the package.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from tools.tables import markdown, write_between

from quietformer.files import write_json
from quietformer.study.paper import RESULTS
from quietformer.study.table import columns

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE, PLOTS = DOCS / "science.md", DOCS / "figures" / "studies"
DROPPED = ("curve", "versions", "real")


def slim(figures: dict[str, Any]) -> dict[str, Any]:
    """Without what a table does not need."""
    trials = [{key: value for key, value in trial.items() if key not in DROPPED} for trial in figures["trials"]]
    return figures | {"trials": trials}


def section(figures: dict[str, Any]) -> str:
    chosen = columns(figures["rows"])
    table = markdown([[title for title, _ in chosen], *([cell(row) for _, cell in chosen] for row in figures["rows"])])
    failed = "".join(f"\nFailed: {text}." for row in figures["rows"] for text in row["failed"])
    minutes = sum(trial.get("seconds", 0.0) for trial in figures["trials"]) / 60
    return f"{table}\n{figures['sentence']}{failed} All runs together: {minutes:.0f} minutes of one core.\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("studies", nargs="+", metavar="NAME=DIR")
    for given in parser.parse_args().studies:
        name, _, folder = given.partition("=")
        figures = json.loads((Path(folder) / "study.json").read_text(encoding="utf-8"))
        RESULTS.mkdir(parents=True, exist_ok=True)
        write_json(RESULTS / f"{name}.json", slim(figures))
        pictures = []
        plots = sorted((Path(folder) / "figures").glob("*.svg"))
        # A picture over the grid says more than the curves of all its runs.
        for plot in [plot for plot in plots if plot.stem != "curves"] or plots:
            PLOTS.mkdir(parents=True, exist_ok=True)
            place = PLOTS / f"{name}-{plot.name}"
            shutil.copyfile(plot, place)
            pictures.append(f"\n![{name}: {plot.stem}]({place.relative_to(DOCS)})\n")
        write_between(PAGE, name, section(figures) + "".join(pictures))


if __name__ == "__main__":
    main()
