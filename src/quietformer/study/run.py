"""A study carried out: every run that is still to be done, then one table over all of them."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import uuid
from collections.abc import Callable
from dataclasses import replace
from glob import glob
from pathlib import Path
from typing import Any

import yaml

from quietformer.config.recipe_files import parse_yaml
from quietformer.config.study import Study, Trial
from quietformer.errors import QuietformerError
from quietformer.files import finite, write_json, write_text
from quietformer.results.cost import SCALES
from quietformer.results.provenance import versions
from quietformer.results.study_table import one_line
from quietformer.study.table import in_words, study_rows
from quietformer.study.workers import MARK, Task, connected, in_processes, on_ray, one_after_another
from quietformer.training.run import with_absolute_paths
from quietformer.training.run_folder import check_run, only_writer
from quietformer.workflows.trial import Tell

FIGURES, DESIGN = "study.json", "study.yaml"
"""In the folder of a study: the figures of all its runs, and what was asked for."""


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
    _check_place(out, study)
    trials = [replace(trial, recipe=with_absolute_paths(trial.recipe)) for trial in study.trials()]
    if not ray:  # a cluster may see files that this machine does not
        _check_sources(trials)
    tasks = [Task(trial, study.measured, out, study.threads) for trial in trials]
    for task in tasks:
        check_run(task.folder, task.trial.recipe, "choose another --out")
    found = {task.trial.name: known for task in tasks if (known := _known(task, retry)) is not None}
    left = [task for task in tasks if task.trial.name not in found]
    with connected(ray, study.threads) if ray and left else contextlib.nullcontext() as cluster, only_writer(out):
        mark = _mark(out)
        left = [replace(task, mark=mark) for task in left]
        write_text(out / DESIGN, yaml.safe_dump(study.to_dict(), sort_keys=False, allow_unicode=True))
        say(f"{study.name}: {len(tasks)} runs" + (f", {len(found)} of them there already" if found else ""))

        def done(result: dict[str, Any]) -> None:
            found[result["name"]] = result
            say(f"{len(found)} of {len(tasks)}  {one_line(result)}")

        if cluster is not None:
            on_ray(left, done, cluster, tell=tell)
        elif jobs > 1 and left:
            in_processes(left, done, jobs, say=say, tell=tell)
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
        "command": shlex.join(["quietformer", *sys.argv[1:]]),
        "versions": versions(),
    }
    written: dict[str, Any] = finite(figures)
    return written


def _known(task: Task, retry: bool) -> dict[str, Any] | None:
    known = task.known()
    return known if known is not None or retry else task.failed()


def _check_sources(trials: list[Trial]) -> None:
    """Files that are not there are told before the first run; the last would find out hours later."""
    for trial in trials:
        data = trial.recipe.data
        for source in (*data.train, *data.validation):
            if source.path and not glob(os.path.expanduser(source.path), recursive=True):
                raise QuietformerError(
                    f"{trial.name}: there is no {source.path}; set data.train.path or data.validation.path to a file, a "
                    f"pattern or a folder. {trial.recipe.about}"
                )


def _check_place(out: Path, study: Study) -> None:
    if out.exists() and not out.is_dir():
        raise QuietformerError(f"{out} is a file; --out takes a folder")
    if out.is_dir() and not (out / MARK).is_file() and any(not entry.name.startswith(".") for entry in out.iterdir()):
        raise QuietformerError(f"{out} holds other things than a study; choose another --out")
    # Runs with other threads have other last digits: they do not belong into one table.
    if (out / DESIGN).is_file() and (threads := parse_yaml(out / DESIGN).get("threads")) != study.threads:
        raise QuietformerError(
            f"{out} was run with {threads} threads a run, this study has {study.threads}; choose another --out"
        )


def _mark(out: Path) -> str:
    """What tells this folder from one of the same name on another machine."""
    path = out / MARK
    if not path.is_file():
        write_text(path, uuid.uuid4().hex)
    return path.read_text(encoding="utf-8")
