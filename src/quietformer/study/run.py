"""A study carried out: every run that is not finished yet, then one report over all of them."""

from __future__ import annotations

import contextlib
import os
import shlex
import uuid
from collections.abc import Sequence
from dataclasses import replace
from glob import glob
from pathlib import Path

import yaml

from quietformer.config.options.study import StudyOptions
from quietformer.config.recipe_files import parse_yaml
from quietformer.config.study import Study, Trial, folder_name
from quietformer.errors import QuietformerError
from quietformer.files import check_new_place, write_text
from quietformer.progress import SILENT, Progress
from quietformer.rendering.study_plots import draw_study
from quietformer.results.quality import SCALES
from quietformer.results.study import StudyReport
from quietformer.results.trial import TrialReport, TrialRun
from quietformer.study.ray_cluster import connected, on_ray
from quietformer.study.rows import in_words, study_rows
from quietformer.study.workers import MARK, Task, in_processes, one_after_another
from quietformer.training.run import with_absolute_paths
from quietformer.training.run_folder import check_run, only_writer

REPORT, DESIGN, PAGE, PLOTS = "study.json", "study.yaml", "report.html", "figures"
"""In the folder of a study: its report, the study itself, the page, and the plots."""


def study_folder(study: Study, options: StudyOptions) -> Path:
    """The folder the user named, or else one with the name of the study."""
    return options.out or Path(folder_name(study.name))


def run_study(
    study: Study, options: StudyOptions, progress: Progress = SILENT, *, typed: Sequence[str] = ("sweep", DESIGN)
) -> StudyReport:
    """Run what is not finished in the folder, then write the report, its page and its plots.

    Failed runs are not repeated unless `options.retry` is set. `typed` is the command for it, without its options.
    """
    out = study_folder(study, options)
    tasks = _tasks(study, out, options)
    left = _left(tasks, options.retry)[0]
    with _cluster(options.ray if left else "", study.threads) as cluster, only_writer(out):
        left, found = _left(tasks, options.retry)  # another process may have carried some out until now
        mark = _mark(out)
        left = [replace(task, mark=mark) for task in left]
        write_text(out / DESIGN, yaml.safe_dump(study.to_dict(), sort_keys=False, allow_unicode=True))
        progress.say(f"{study.name}: {len(tasks)} runs" + (f", {len(found)} of them finished" if found else ""))

        def done(result: TrialReport) -> None:
            found[result.name] = result
            progress.say(f"{len(found)} of {len(tasks)}  {result.in_one_line()}")

        if cluster is not None:
            on_ray(left, done, cluster, progress)
        elif options.jobs > 1 and left:
            in_processes(left, done, options.jobs, progress)
        else:
            one_after_another(left, done, progress)
        command = shlex.join(["quietformer", *typed, *options.words()])
        report = study_report(study, [found[task.trial.name].run() for task in tasks], command)
        report.save(out / REPORT)
    _write(report, out, progress)
    return report


def _left(tasks: list[Task], retry: bool) -> tuple[list[Task], dict[str, TrialReport]]:
    """Runs that are not finished, and the reports of those that are."""
    found = {task.trial.name: known for task in tasks if (known := _known(task, retry)) is not None}
    return [task for task in tasks if task.trial.name not in found], found


def _tasks(study: Study, out: Path, options: StudyOptions) -> list[Task]:
    """Every run of the study; mistakes are errors before the first run starts."""
    _check_folder(out, study)
    trials = [replace(trial, recipe=with_absolute_paths(trial.recipe)) for trial in study.trials()]
    if not options.ray:  # a cluster may see files that this machine does not
        _check_sources(trials)
    tasks = [Task(trial, study.measured, out, study.threads) for trial in trials]
    for task in tasks:
        check_run(task.folder, task.trial.recipe, "choose another --out")
    return tasks


def _cluster(address: str, threads: int) -> contextlib.AbstractContextManager[object]:
    return connected(address, threads) if address else contextlib.nullcontext()


def study_report(study: Study, runs: Sequence[TrialRun], command: str = "") -> StudyReport:
    """The report over finished and failed runs."""
    rows = study_rows(study, runs)
    first = next((run.result for run in runs if run.result is not None), None)
    primary, better = ("", None) if first is None else (first.primary, first.better)
    return StudyReport(
        name=study.name,
        about=study.about,
        paper=study.paper,
        study=study,
        task=None if first is None else first.task,
        primary=primary or None,
        better=better,
        scale=None if better is None else SCALES[better],
        sentence=in_words(rows, primary, better),
        rows=rows,
        trials=list(runs),
        command=command,
    )


def _write(report: StudyReport, out: Path, progress: Progress) -> None:
    report.to_html(out / PAGE)
    try:
        draw_study(report, out / PLOTS)
    except QuietformerError as error:  # without matplotlib there are no plots
        progress.say(str(error))


def _known(task: Task, retry: bool) -> TrialReport | None:
    known = task.known()
    return known if known is not None or retry else task.failed()


def _check_sources(trials: list[Trial]) -> None:
    """Missing files are an error before the first run starts; the last run would find out hours later."""
    for trial in trials:
        data = trial.recipe.data
        for source in (*data.train, *data.validation):
            if source.path and not glob(os.path.expanduser(source.path), recursive=True):
                raise QuietformerError(
                    f"{trial.name}: there is no {source.path}; set data.train.path or data.validation.path to a file, a "
                    f"pattern or a folder. {trial.recipe.about}"
                )


def _check_folder(out: Path, study: Study) -> None:
    check_new_place(out)
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
