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

from experiments.documents import markdown
from experiments.provenance import ROOT, keep
from quietformer.rendering.study_plots import NAMES
from quietformer.results.study import StudyReport
from quietformer.results.trial import RealInt8, TrialRun
from quietformer.study.rows import in_words

FINISHED = Path(__file__).parent / "finished"
PLOTS = ROOT / "docs" / "figures" / "studies"


def slim(report: StudyReport) -> StudyReport:
    """Without what a table does not need."""
    return report.model_copy(update={"trials": [_slim_run(run) for run in report.trials]})


def _slim_run(run: TrialRun) -> TrialRun:
    if run.result is None:
        return run
    real = run.result.real
    kept = None if real is None else RealInt8(**{name: getattr(real, name) for name in ("metrics", "error")})
    return run.model_copy(update={"result": run.result.model_copy(update={"curve": [], "real": kept})})


def section(name: str, report: StudyReport) -> str:
    """The part of docs/science.md between the marks of a study."""
    found = report.table
    table = markdown([found.columns, *found.rows])
    failed = "".join(f"\nFailed: {text}." for text in report.failures())
    minutes = sum(run.result.seconds for run in report.trials if run.result is not None) / 60
    pictures = (f"\n![{name}: {plot}](figures/studies/{name}-{plot}.svg)\n" for plot in plots_of(name))
    said = f"{in_words(report.rows, report.metric, report.better)}{failed} All runs together: {minutes:.0f} minutes."
    return f"{table}\n{said}\n{''.join(pictures)}"


def plots_of(name: str) -> list[str]:
    """The plots that are kept of a study: a picture over the grid says more than the curves of all its runs."""
    found = sorted(path.stem.removeprefix(f"{name}-") for path in PLOTS.glob(f"{name}-*.svg"))
    return [plot for plot in found if plot.partition("-")[0] in NAMES]


def keep_study(name: str, folder: Path) -> None:
    report = StudyReport.read(folder / "study.json")
    keep(str(FINISHED / name), json.loads(slim(report).to_json()), command=report.command)
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
