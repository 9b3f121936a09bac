"""The tables and plots of docs/science.md, and the reports that `quietformer paper` shows, from finished studies.

    python -m tools.study_tables [NAME=DIR ...]

NAME is the mark of the table in the document; DIR a folder that `compare` or `sweep` has left. The reports are kept, without the
curves of single runs, in the package. Without a name the tables are written again from the reports that are kept.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from tools.tables import markdown, write_between

from quietformer.report.study_plots import NAMES
from quietformer.results.study import StudyReport
from quietformer.results.trial import RealInt8, TrialRun
from quietformer.study.paper import RESULTS
from quietformer.study.table import in_words

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE, PLOTS = DOCS / "science.md", DOCS / "figures" / "studies"


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
    """What stands in the document between the marks of a study."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("studies", nargs="*", metavar="NAME=DIR")
    given = parser.parse_args().studies
    for name in [] if given else sorted(path.stem for path in RESULTS.glob("*.json")):
        write_between(PAGE, name, section(name, StudyReport.read(RESULTS / f"{name}.json")))
    for one in given:
        name, _, folder = one.partition("=")
        report = StudyReport.read(Path(folder) / "study.json")
        RESULTS.mkdir(parents=True, exist_ok=True)
        slim(report).save(RESULTS / f"{name}.json")
        PLOTS.mkdir(parents=True, exist_ok=True)
        for old in plots_of(name):
            (PLOTS / f"{name}-{old}.svg").unlink()
        plots = sorted((Path(folder) / "figures").glob("*.svg"))
        for plot in [plot for plot in plots if plot.stem != "curves"] or plots:
            shutil.copyfile(plot, PLOTS / f"{name}-{plot.name}")
        write_between(PAGE, name, section(name, report))


if __name__ == "__main__":
    main()
