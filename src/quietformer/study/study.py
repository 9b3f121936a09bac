"""A study carried out: every run that is still to be done, then one table over all of them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from quietformer.analysis.cost import SCALES
from quietformer.analysis.provenance import command_line, versions
from quietformer.errors import QuietformerError
from quietformer.files import finite, write_json, write_text
from quietformer.study.design import Study
from quietformer.study.table import in_words, one_line, study_rows
from quietformer.study.trial import Tell, finished_trial
from quietformer.study.workers import FAILED, MARK, Task, in_processes, on_ray, one_after_another
from quietformer.train.run import with_absolute_paths
from quietformer.train.run_folder import only_writer

RUNS, FIGURES, DESIGN = "runs", "study.json", "study.yaml"
"""In the folder of a study: a folder for each run, the figures of all of them, and what was asked for."""


def run_study(
    study: Study,
    out: Path,
    *,
    jobs: int = 1,
    ray: str = "",
    retry: bool = False,
    say: Callable[[str], None],
    tell: Tell,
) -> dict[str, Any]:
    """The figures of all runs; what is finished in the folder is not run again, nor what failed unless `retry`."""
    trials = study.trials()
    _check_place(out)
    with only_writer(out):
        mark = _mark(out)
        write_text(out / DESIGN, yaml.safe_dump(study.to_dict(), sort_keys=False, allow_unicode=True))
        tasks = [Task(trial, study.measured, out / RUNS / trial.name, study.threads, mark) for trial in trials]
        found: dict[str, dict[str, Any]] = {}
        for task in tasks:
            if (known := _known(task, retry)) is not None:
                found[task.trial.name] = known
        left = [task for task in tasks if task.trial.name not in found]
        say(f"{study.name}: {len(tasks)} runs" + (f", {len(found)} of them there already" if found else ""))

        def done(result: dict[str, Any]) -> None:
            found[result["name"]] = result
            say(f"{len(found)} of {len(tasks)}  {one_line(result)}")

        if not left:
            pass
        elif ray:
            on_ray(left, done, ray)
        elif jobs > 1:
            in_processes(left, done, jobs)
        else:
            one_after_another(left, done, say=say, tell=tell)
        figures = study_figures(study, [found[trial.name] for trial in trials])
        write_json(out / FIGURES, figures)
    return figures


def study_figures(study: Study, results: list[dict[str, Any]]) -> dict[str, Any]:
    """All that is known of a study, a run without its key, which is in its own folder."""
    rows = study_rows(study, results)
    whole = [result for result in results if "failed" not in result]
    figures = {
        "version": 1,
        "kind": "study",
        "name": study.name,
        "about": study.about,
        "paper": study.paper,
        "study": study.to_dict(),
        "task": whole[0]["task"] if whole else None,
        "primary": whole[0]["primary"] if whole else None,
        "better": whole[0]["better"] if whole else None,
        "scale": SCALES[whole[0]["better"]] if whole else None,
        "sentence": in_words(rows),
        "rows": rows,
        "trials": [{name: value for name, value in result.items() if name != "key"} for result in results],
        "command": command_line(),
        "versions": versions(),
    }
    written: dict[str, Any] = finite(figures)
    return written


def _known(task: Task, retry: bool) -> dict[str, Any] | None:
    recipe = with_absolute_paths(task.trial.recipe)
    key = {"recipe": recipe.to_dict(), "measures": task.measures.to_dict()}
    if (figures := finished_trial(task.folder, key)) is not None:
        return figures
    if retry:
        return None
    try:
        failed = json.loads((task.folder / FAILED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return failed if isinstance(failed, dict) and "failed" in failed else None


def _check_place(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise QuietformerError(f"{out} is a file; --out takes a folder")
    if out.is_dir() and not (out / MARK).is_file() and any(not entry.name.startswith(".") for entry in out.iterdir()):
        raise QuietformerError(f"{out} holds other things than a study; choose another --out")


def _mark(out: Path) -> str:
    """What tells this folder from one of the same name on another machine."""
    path = out / MARK
    if not path.is_file():
        write_text(path, uuid.uuid4().hex)
    return path.read_text(encoding="utf-8")
