"""Keeps finished training runs for docs/train.md: their commands, results and curves.

    python -m experiments.training.keep RUN...

RUN is a folder that `quietformer train` wrote, by the code that is checked out.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

from experiments.documents import markdown
from experiments.provenance import keep, portable
from quietformer.results.train import TrainReport

KEPT = ("recipe", "attention", "seed", "steps", "data", "validation", "bigram_perplexity", "majority_accuracy", "outliers",
        "parameters", "steps_per_second", "processes", "versions", "log")  # fmt: skip


HEAD = ("recipe", "attention", "parameters", "steps", "validation", "beside", "infinity norm", "kurtosis", "training")


def table(result: dict[str, Any]) -> str:
    return markdown([HEAD, *map(row, result["figures"])])


def row(run: dict[str, Any]) -> list[str]:
    found, outliers = run["validation"], run["outliers"]
    if "perplexity" in found:
        quality = f"perplexity {found['perplexity']:.2f}"
        beside = f"bigram {run['bigram_perplexity']:.2f}"
    else:
        quality = f"accuracy {found['accuracy']:.2%}"
        beside = f"largest class {run['majority_accuracy']:.2%}"
    return [
        run["recipe"], run["attention"], f"{run['parameters'] / 1e6:.2f}M", f"{run['steps']:,}", quality, beside,
        f"{outliers['infinity_norm']:.1f}", f"{outliers['kurtosis']:.1f}",
        f"{run['steps'] / run['steps_per_second'] / 60:.1f} min",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    reports = [TrainReport.read(run / "figures.json") for run in parser.parse_args().runs]
    kept = [report.model_dump(mode="json", include=set(KEPT)) for report in reports]
    for run in kept:
        run["data"]["sources"] = [portable(source) for source in run["data"]["sources"]]
    commands = [" ".join(map(portable, shlex.split(report.command))) for report in reports]
    keep(str(Path(__file__).with_name("runs")), {"runs": commands, "figures": kept}, command=" && ".join(commands))


if __name__ == "__main__":
    main()
