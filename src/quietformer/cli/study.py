"""`quietformer compare` and `quietformer sweep`: many runs under equal conditions, and one table over them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quietformer.cli.progress import TerminalProgress, working
from quietformer.errors import QuietformerError
from quietformer.files import check_place, write_json

if TYPE_CHECKING:
    from quietformer.config.study import Study

PAGE, FIGURES = "report.html", "figures"

WIDE = 160

JobsOption = Annotated[int, typer.Option("--jobs", min=1, help="So many runs at a time, each in a process of its own.")]

RayOption = Annotated[
    str, typer.Option("--ray", metavar="ADDRESS", help="Run on a Ray cluster: its address, 'auto', or 'local'.")
]

RetryOption = Annotated[bool, typer.Option("--retry", help="Run again what failed before.")]

JsonOption = Annotated[Path | None, typer.Option("--json", metavar="PATH", help="Also write the figures here.")]


def compare(
    recipe: str = typer.Argument(
        "", metavar="[RECIPE]", help="A recipe file or a built-in name ('quietformer recipes'); small/opt by default."
    ),
    variants: list[str] = typer.Option(
        [], "--variants", metavar="A,B,...", help="Which of the recipe's variants; all of them by default."
    ),
    seeds: int = typer.Option(2, "--seeds", min=1, metavar="COUNT", help="Training runs of each variant."),
    out: Path | None = typer.Option(
        None, "--out", metavar="DIR", help="The folder for everything; NAME-compare by default. The same again goes on."
    ),
    changes: list[str] = typer.Option(
        [], "--set", metavar="KEY=VALUE", help="Change a field of the recipe for all variants; repeatable."
    ),
    bits: list[str] = typer.Option(
        ["w8a8"], "--bits", metavar="WxAy,...", help="How the trained models are quantized."
    ),
    calibrations: int = typer.Option(3, "--calibrations", min=1, help="How often each model is calibrated."),
    sequences: int = typer.Option(256, "--sequences", min=2, help="Validation sequences or images to evaluate on."),
    real: bool = typer.Option(True, help="Also export real INT8 and evaluate it."),
    threads: int = typer.Option(
        1, "--threads", min=1, help="Threads of a run; another number gives other last digits."
    ),
    jobs: JobsOption = 1,
    ray: RayOption = "",
    retry: RetryOption = False,
    json_path: JsonOption = None,
) -> None:
    """Train variants of a recipe under equal conditions, quantize and export each, and set them side by side."""
    check_place(json_path)
    with working("starting"):
        from quietformer.config.recipe_files import DEFAULT, read_changes, read_recipe
        from quietformer.config.study import Measures, Study

        name = recipe or DEFAULT
        there = read_recipe(name)
        chosen = _parts(variants) if variants else list(there.variants)
        if not chosen:
            raise QuietformerError(f"{name} has no variants to compare; add some under 'variants', or use sweep")
        study = Study(
            name=f"{there.name}-compare", about=there.about, recipe=name, set=read_changes(changes),
            grid={"variant": chosen}, seeds=tuple(range(seeds)), threads=threads,
            measures=Measures(
                bits=tuple(_parts(bits)), calibrations=calibrations, sequences=sequences, real=real, pages=True
            ),
        )  # fmt: skip
    _run(study, out, jobs, ray, retry, json_path)


def _parts(given: list[str]) -> list[str]:
    """`a,b`, said once or several times."""
    parts = [part.strip() for text in given for part in text.split(",")]
    if not all(parts):
        raise QuietformerError(f"cannot read {','.join(given)!r}; write names with commas between them, e.g. a,b")
    return parts


def sweep(
    file: str = typer.Argument(
        "",
        metavar="[FILE]",
        help="A YAML file with recipe, grid and seeds, or a built-in name; without one, their list.",
    ),
    out: Path | None = typer.Option(
        None, "--out", metavar="DIR", help="The folder for everything; FILE's name by default. The same again goes on."
    ),
    jobs: JobsOption = 1,
    ray: RayOption = "",
    retry: RetryOption = False,
    json_path: JsonOption = None,
) -> None:
    """Run a recipe over a grid of its fields; killed at any moment, the same command goes on and repeats nothing."""
    check_place(json_path)
    if not file:
        return _list_studies(json_path)
    with working("starting"):
        from quietformer.config.study import find_study, read_study

        study = read_study(find_study(file))
    return _run(study, out, jobs, ray, retry, json_path)


def _list_studies(json_path: Path | None) -> None:
    with working("starting"):
        from quietformer.config.study import built_in_studies, find_study, read_study

        known = {name: read_study(find_study(name)) for name in built_in_studies()}
    write_json(json_path, {name: study.to_dict() for name, study in known.items()})
    for name, study in known.items():
        print(f"{name}\n  {study.about}\n  {len(study.trials())} runs of {study.recipe}")
    print("\nquietformer sweep NAME [--out DIR] [--jobs N]; docs/study.md says how to write one")


def _run(study: Study, place: Path | None, jobs: int, ray: str, retry: bool, json_path: Path | None) -> None:
    with working("starting"):
        from quietformer.config.study import folder_name
        from quietformer.report.page import write_page
        from quietformer.study.run import run_study
        from quietformer.training.interrupt import StoppedError
    out = place or Path(folder_name(study.name))
    if ray and jobs > 1:
        raise QuietformerError("give --jobs or --ray, not both")
    try:
        with TerminalProgress() as told:
            figures = run_study(study, out, jobs=jobs, ray=ray, retry=retry, say=told.say, tell=told.step)
    except StoppedError as stopped:
        print(stopped, file=sys.stderr, flush=True)
        raise typer.Exit(130) from None
    write_json(json_path, figures)
    write_page(figures, out / PAGE)
    print_study(figures)
    drawn = _draw(figures, out / FIGURES)
    print(f"\npage {out / PAGE}, figures {out / 'study.json'}" + (f", plots in {out / FIGURES}" if drawn else ""))
    if any(row["failed"] for row in figures["rows"]):
        print("some runs failed; --retry runs them again")
    if not any(row["runs"] for row in figures["rows"]):
        raise typer.Exit(1)


def _draw(figures: dict[str, Any], folder: Path) -> bool:
    """Plots as files, where matplotlib is there to draw them."""
    from quietformer.report.study_plots import draw_study

    try:
        return bool(draw_study(figures, folder))
    except QuietformerError as error:
        print(error, file=sys.stderr)
        return False


def print_study(figures: dict[str, Any]) -> None:
    """The table on the terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from quietformer.results.study_table import columns, failures, label, legend

    # A file or a pipe has no edge to break lines at.
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else WIDE)
    console.print(Text(f"\n{figures['sentence']}", style="bold"))
    table = Table(title=f"\n{figures['name']}", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    chosen = columns(figures["rows"])
    for title, _ in chosen:
        # Where it is narrow the names of settings are folded, never a figure.
        table.add_column(title, justify="right" if title else "left", no_wrap=bool(title), overflow="fold")
    for row in figures["rows"]:
        table.add_row(*(cell(row) for _, cell in chosen))
    console.print(table)
    for text in failures(figures["rows"]):
        console.print(text)
    for row in figures["rows"]:
        for text in row.get("not_exported", []):
            console.print(f"{label(row['at'])}, not exported, {text}")
    for text in legend(figures["rows"]):
        console.print(Text(text, style="dim"))
    if figures["paper"]:
        console.print(f"\nthe paper: {figures['paper']}")
