"""The tables and plots of docs/science.md, and the figures that `quietformer paper` shows, from finished studies.

    python -m tools.study_tables [NAME=DIR ...]

NAME is the mark of the table in the document; DIR a folder that `compare` or `sweep` has left. The figures are kept, without the
curves of single runs, in the package. Without a name the tables are written anew from the figures that are kept.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from tools.tables import markdown, write_between

from quietformer.files import write_json
from quietformer.report.study_plots import NAMES
from quietformer.results.study_table import columns, failures
from quietformer.study.paper import RESULTS
from quietformer.study.table import in_words

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE, PLOTS = DOCS / "science.md", DOCS / "figures" / "studies"
DROPPED = ("curve", "versions")


def slim(figures: dict[str, Any]) -> dict[str, Any]:
    """Without what a table does not need."""
    trials = [{key: value for key, value in trial.items() if key not in DROPPED} for trial in figures["trials"]]
    for trial in trials:
        if trial.get("real"):  # not its sizes and latencies
            trial["real"] = {key: value for key, value in trial["real"].items() if key in ("figures", "error")}
    return figures | {"trials": trials}


def section(name: str, figures: dict[str, Any]) -> str:
    """What stands in the document between the marks of a study."""
    chosen = columns(figures["rows"])
    table = markdown([[title for title, _ in chosen], *([cell(row) for _, cell in chosen] for row in figures["rows"])])
    failed = "".join(f"\nFailed: {text}." for text in failures(figures["rows"]))
    minutes = sum(trial.get("seconds", 0.0) for trial in figures["trials"]) / 60
    pictures = (f"\n![{name}: {plot}](figures/studies/{name}-{plot}.svg)\n" for plot in plots_of(name))
    said = f"{in_words(figures['rows'])}{failed} All runs together: {minutes:.0f} minutes."
    return f"{table}\n{said}\n{''.join(pictures)}"


def plots_of(name: str) -> list[str]:
    """The plots that are kept of a study: a picture over the grid says more than the curves of all its runs."""
    found = sorted(path.stem.removeprefix(f"{name}-") for path in PLOTS.glob(f"{name}-*.svg"))
    return [plot for plot in found if plot.partition("-")[0] in NAMES]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("studies", nargs="*", metavar="NAME=DIR")
    given = parser.parse_args().studies
    for name in [] if given else sorted(path.stem for path in RESULTS.glob("*.json")):
        write_between(PAGE, name, section(name, json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))))
    for one in given:
        name, _, folder = one.partition("=")
        figures = json.loads((Path(folder) / "study.json").read_text(encoding="utf-8"))
        RESULTS.mkdir(parents=True, exist_ok=True)
        write_json(RESULTS / f"{name}.json", slim(figures))
        PLOTS.mkdir(parents=True, exist_ok=True)
        for old in plots_of(name):
            (PLOTS / f"{name}-{old}.svg").unlink()
        plots = sorted((Path(folder) / "figures").glob("*.svg"))
        for plot in [plot for plot in plots if plot.stem != "curves"] or plots:
            shutil.copyfile(plot, PLOTS / f"{name}-{plot.name}")
        write_between(PAGE, name, section(name, figures))


if __name__ == "__main__":
    main()
