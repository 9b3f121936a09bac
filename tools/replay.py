"""Whether the code still gives the figures of a study that is kept in the package: some of its runs again, digit by digit.

    python -m tools.replay gamma-zeta='gamma=0.0,zeta=1.0,seed=0' causal-clipping=vanilla,seed=0 [--out DIR]

A run is a function of its recipe, its seed and the code, so one that comes out the same to the last digit says that the others
would. Writes results/replays.json; exits with 1 if any figure differs. Another processor may round otherwise.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from quietformer.analysis.provenance import versions
from quietformer.files import write_json
from quietformer.study.design import Study
from quietformer.study.paper import RESULTS
from quietformer.study.study import run_study

JSON = Path("results/replays.json")
COMPARED = ("float", "quantized", "outliers", "beside")


def leaves(value: Any, at: str = "") -> dict[str, Any]:
    """Every number of nested figures by its place."""
    if isinstance(value, dict):
        return {place: leaf for key, item in value.items() for place, leaf in leaves(item, f"{at}.{key}").items()}
    return {at.lstrip("."): value}


def replayed(name: str, run: str, out: Path) -> dict[str, Any]:
    """One run of a study that is kept, carried out again."""
    if not (RESULTS / f"{name}.json").is_file():
        sys.exit(
            f"no figures of {name!r} are kept; there are {', '.join(sorted(p.stem for p in RESULTS.glob('*.json')))}"
        )
    kept = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    runs = {trial["name"]: trial for trial in kept["trials"]}
    if run not in runs:
        sys.exit(f"{name} has no run {run!r}; it has {', '.join(runs)}")
    then = runs[run]
    fields = kept["study"] | {"grid": {field: [value] for field, value in then["at"].items()}, "seeds": [then["seed"]]}
    figures = run_study(Study(**fields), out / f"{name}-{run}", say=print, tell=lambda what, done, total: None)
    now = figures["trials"][0]
    before, after = ({key: leaves(trial.get(key), key) for key in COMPARED} for trial in (then, now))
    different = {
        place: [before[key].get(place), after[key].get(place)]
        for key in COMPARED
        for place in before[key] | after[key]
        if before[key].get(place) != after[key].get(place)
    }
    return {"study": name, "run": run, "figures": sum(map(len, after.values())), "different": different}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="STUDY=RUN")
    parser.add_argument("--out", type=Path, default=None, help="keep the runs here; the same again goes on")
    arguments = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        for given in arguments.runs:
            name, _, run = given.partition("=")
            found.append(replayed(name, run, arguments.out or Path(scratch)))
            said = f"{len(found[-1]['different'])} of {found[-1]['figures']} figures differ"
            print(f"{name}, {run}: {said}", flush=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    command = " ".join(["python -m tools.replay", *(f"'{run}'" for run in arguments.runs)])
    write_json(JSON, {"command": command, "commit": commit, "replays": found, "versions": versions()})
    sys.exit(any(replay["different"] for replay in found))


if __name__ == "__main__":
    main()
