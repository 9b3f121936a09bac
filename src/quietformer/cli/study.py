"""`quietformer compare` and `quietformer sweep`: many runs under equal conditions, and one table over them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from quietformer.cli.printing import print_report
from quietformer.cli.progress import TerminalProgress, working
from quietformer.cli.recipe_argument import RecipeArgument
from quietformer.cli.report_files import JsonOutput
from quietformer.config.options.study import CompareOptions, StudyOptions, SweepOptions

if TYPE_CHECKING:
    from quietformer.progress import Progress
    from quietformer.results.study import StudyReport


def compare(
    options: CompareOptions,
    output: JsonOutput,
    recipe: RecipeArgument = "",
) -> None:
    """Train variants of a recipe under equal conditions, quantize and export each, and show them side by side."""
    output.check()
    with working("starting"):
        from quietformer.study import compare as verb
    _run(lambda progress: verb.compare(recipe, options, progress), options, output)


def sweep(
    options: SweepOptions,
    output: JsonOutput,
    file: str = typer.Argument(
        "",
        metavar="[FILE]",
        help="A YAML file with recipe, grid and seeds, or a built-in name; without one, their list.",
    ),
) -> None:
    """Run a recipe over a grid of its fields. Interrupted at any moment, the same command resumes and repeats nothing."""
    output.check()
    if not file:
        _list_studies(output)
        return
    with working("starting"):
        from quietformer.study import sweep as verb
    _run(lambda progress: verb.sweep(file, options, progress), options, output)


def _list_studies(output: JsonOutput) -> None:
    with working("starting"):
        from quietformer.workflows.listings import studies

        report = studies()
    output.write(report)
    print("\n".join(report.sentences()))
    print("\nquietformer sweep NAME [--out DIR] [--jobs N]; docs/study.md says how to write one")


def _run(verb: Callable[[Progress], StudyReport], options: StudyOptions, output: JsonOutput) -> None:
    """Run the study, print its report, and exit with 130 if it was interrupted, with 1 if no run finished."""
    from quietformer.study.run import PAGE, PLOTS, REPORT, study_folder
    from quietformer.training.interrupt import StoppedError

    try:
        with TerminalProgress() as progress:
            report = verb(progress)
    except StoppedError as stopped:
        print(stopped, file=sys.stderr, flush=True)
        raise typer.Exit(130) from None
    output.write(report)
    print_report(report)
    out = study_folder(report.study, options)
    drawn = (out / PLOTS).is_dir() and any((out / PLOTS).iterdir())
    print(f"\npage {out / PAGE}, report {out / REPORT}" + (f", plots in {out / PLOTS}" if drawn else ""))
    if report.failures():
        print("some runs failed; --retry runs them again")
    if not report.finished:
        raise typer.Exit(1)
