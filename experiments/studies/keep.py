"""Keeps finished studies for the documents: their results without the curves of single runs, and their plots.

    python -m experiments.studies.keep NAME=DIR ...

NAME is the mark of the table in docs/science.md; DIR is a folder that `quietformer compare` or `sweep` wrote, by the code that
is checked out. `python -m experiments.tables` then writes the tables. `quietformer paper` shows the kept studies, too.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from experiments.documents import markdown
from experiments.provenance import ROOT, keep
from quietformer.report.study_plots import NAMES
from quietformer.results.study_table import columns, failures
from quietformer.study.table import in_words

FINISHED = Path(__file__).parent / "finished"
PLOTS = ROOT / "docs" / "figures" / "studies"
DROPPED = ("curve", "versions")


def slim(study: dict[str, Any]) -> dict[str, Any]:
    """Without what a table does not need."""
    trials = [{key: value for key, value in trial.items() if key not in DROPPED} for trial in study["trials"]]
    for trial in trials:
        if trial.get("real"):  # not its sizes and latencies
            trial["real"] = {key: value for key, value in trial["real"].items() if key in ("figures", "error")}
    return study | {"trials": trials}


def section(name: str, study: dict[str, Any]) -> str:
    """The part of docs/science.md between the marks of a study."""
    chosen = columns(study["rows"])
    table = markdown([[title for title, _ in chosen], *([cell(row) for _, cell in chosen] for row in study["rows"])])
    failed = "".join(f"\nFailed: {text}." for text in failures(study["rows"]))
    minutes = sum(trial.get("seconds", 0.0) for trial in study["trials"]) / 60
    pictures = (f"\n![{name}: {plot}](figures/studies/{name}-{plot}.svg)\n" for plot in plots_of(name))
    said = f"{in_words(study['rows'])}{failed} All runs together: {minutes:.0f} minutes."
    return f"{table}\n{said}\n{''.join(pictures)}"


def plots_of(name: str) -> list[str]:
    """The plots that are kept of a study: a picture over the grid says more than the curves of all its runs."""
    found = sorted(path.stem.removeprefix(f"{name}-") for path in PLOTS.glob(f"{name}-*.svg"))
    return [plot for plot in found if plot.partition("-")[0] in NAMES]


def keep_study(name: str, folder: Path) -> None:
    study = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    keep(str(FINISHED / name), slim(study), command=study["command"])
    for old in plots_of(name):
        (PLOTS / f"{name}-{old}.svg").unlink()
    plots = sorted((folder / "figures").glob("*.svg"))
    for plot in [plot for plot in plots if plot.stem != "curves"] or plots:
        shutil.copyfile(plot, PLOTS / f"{name}-{plot.name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("studies", nargs="+", metavar="NAME=DIR")
    for given in parser.parse_args().studies:
        name, _, folder = given.partition("=")
        keep_study(name, Path(folder))


if __name__ == "__main__":
    main()
