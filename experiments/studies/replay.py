"""Whether the code still gives the figures of a study that is kept in the package: some of its runs again, digit by digit.

    python -m experiments.studies.replay gamma-zeta='gamma=0.0,zeta=1.0,seed=0' causal-clipping=vanilla,seed=0

A run is a function of its recipe, its seed and the code, so one that comes out the same to the last digit says that the others
would. Compared are quality in fp32, quantized and as real INT8, outliers, and what stands beside them. Adds to
experiments/studies/replay.json; exits with 1 if any figure differs. Another processor may round otherwise.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from experiments.provenance import commit, keep
from experiments.studies.keep import FINISHED
from quietformer.config.options.study import SweepOptions
from quietformer.config.study import Study
from quietformer.results.provenance import versions
from quietformer.results.study import StudyReport
from quietformer.results.trial import TrialRun
from quietformer.study.run import run_study

JSON = Path(__file__).with_suffix(".json")
COMPARED = ("fp32", "quantized", "real", "outliers", "baselines")


def leaves(value: Any, at: str = "") -> dict[str, Any]:
    """Every number of nested figures by its place."""
    if isinstance(value, dict):
        return {place: leaf for key, item in value.items() for place, leaf in leaves(item, f"{at}.{key}").items()}
    return {at.lstrip("."): value}


def compared(run: TrialRun) -> dict[str, Any]:
    """What must be the same; of real INT8 not how long it takes."""
    assert run.result is not None
    result = run.result.model_dump(mode="json")
    chosen = {key: result.get(key) for key in COMPARED}
    chosen["real"] = (chosen["real"] or {}).get("metrics")
    return leaves({key: value for key, value in chosen.items() if value is not None})


def kept_run(name: str, run: str) -> tuple[Study, TrialRun]:
    """One run of a study that is kept: the study with that run alone, and its results."""
    if not (FINISHED / f"{name}.json").is_file():
        sys.exit(
            f"no figures of {name!r} are kept; there are {', '.join(sorted(p.stem for p in FINISHED.glob('*.json')))}"
        )
    kept = StudyReport.read(FINISHED / f"{name}.json")
    runs = {trial.name: trial for trial in kept.trials}
    if run not in runs:
        sys.exit(f"{name} has no run {run!r}; it has {', '.join(runs)}")
    then = runs[run]
    grid = {field: [value] for field, value in then.at.items()}
    return Study(**(kept.study.to_dict() | {"grid": grid, "seeds": [then.seed]})), then


def replayed(name: str, run: str, out: Path) -> dict[str, Any]:
    """One run of a study that is kept, carried out again in a folder that is new."""
    study, then = kept_run(name, run)
    now = run_study(study, SweepOptions(out=out)).trials[0]
    if now.failed is not None:
        sys.exit(f"{name}, {run} failed: {now.failed}")
    before, after = compared(then), compared(now)
    different = {
        place: [before.get(place), after.get(place)]
        for place in before | after
        if before.get(place) != after.get(place)
    }
    return {
        "study": name,
        "run": run,
        "figures": len(after),
        "different": different,
        "commit": commit(),
        "versions": versions(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="STUDY=RUN")
    asked = [(name, run) for name, _, run in (given.partition("=") for given in parser.parse_args().runs)]
    for name, run in asked:
        kept_run(name, run)  # a mistake is told before the first is carried out
    known = json.loads(JSON.read_text(encoding="utf-8"))["replays"] if JSON.is_file() else []
    found = []
    for name, run in asked:
        with tempfile.TemporaryDirectory() as scratch:
            found.append(replayed(name, run, Path(scratch) / "study"))
        print(f"{name}, {run}: {len(found[-1]['different'])} of {found[-1]['figures']} figures differ", flush=True)
        others = [one for one in known if (one["study"], one["run"]) not in asked]
        keep(__file__, {"replays": [*others, *found]})
    sys.exit(any(replay["different"] for replay in found))


if __name__ == "__main__":
    main()
