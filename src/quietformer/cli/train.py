"""`quietformer train`: a recipe carried out, resumed, or only planned."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from quietformer.cli.progress import TerminalProgress, working
from quietformer.errors import QuietformerError
from quietformer.files import check_place
from quietformer.progress import SILENT

if TYPE_CHECKING:
    from quietformer.results.train import TrainReport


def train(
    recipe: str = typer.Argument(
        "", metavar="[RECIPE]", help="A recipe file or a built-in name ('quietformer recipes'); small/opt by default."
    ),
    out: Path | None = typer.Option(
        None, "--out", metavar="DIR", help="The run folder; the same command again resumes the run in it."
    ),
    variant: str = typer.Option("", "--variant", metavar="NAME", help="One of the recipe's variants."),
    changes: list[str] = typer.Option(
        [], "--set", metavar="KEY=VALUE", help="Change a field of the recipe, e.g. training.steps=100; repeatable."
    ),
    plan: bool = typer.Option(False, "--plan", help="Print size, memory, work and time of the run; train nothing."),
    devices: int = typer.Option(1, "--devices", min=1, help="With --plan: how many devices share the work."),
    measure: bool = typer.Option(True, help="With --plan: time a few steps on this machine."),
    json_path: Path | None = typer.Option(None, "--json", metavar="PATH", help="Also write the report as JSON."),
) -> None:
    """Train a model from a recipe. Killed at any moment, the same command resumes and ends with the same weights.

    On several devices or machines: torchrun --nproc-per-node 8 -m quietformer train RECIPE --out DIR, or accelerate launch.
    """
    check_place(json_path)
    if plan:
        return _plan(recipe, variant, changes, devices, measure, json_path)
    if out is None:
        raise QuietformerError("say where the run goes: --out DIR (or --plan, to see what it would take)")
    first = os.environ.get("RANK", "0") == "0"
    with working("starting", show=first):
        from quietformer.config.recipe_files import DEFAULT, read_recipe
        from quietformer.training.run_folder import recipe_in

        there = recipe_in(out) if out.is_dir() and not recipe else None
        if there is not None and (variant or changes):
            raise QuietformerError(f"{out} has its recipe already; --variant and --set are for a new run")
        chosen = there or read_recipe(recipe or DEFAULT, variant=variant, changes=changes)
        from quietformer.training.interrupt import StoppedError
        from quietformer.training.run import train as run
    try:
        with TerminalProgress() as told:
            report = run(chosen, out, told if first else SILENT)
    except StoppedError as stopped:
        if first:
            print(stopped, file=sys.stderr, flush=True)
        raise typer.Exit(130) from None
    if first:
        if json_path is not None:
            report.save(json_path)
        _print(report, out)
    return None


def _plan(recipe: str, variant: str, changes: list[str], devices: int, measure: bool, json_path: Path | None) -> None:
    with working("planning"):
        from quietformer.cli.plan_table import print_plan
        from quietformer.config.recipe_files import DEFAULT, read_recipe
        from quietformer.training.plan import plan

        report = plan(
            read_recipe(recipe or DEFAULT, variant=variant, changes=changes), devices=devices, measure=measure
        )
    if json_path is not None:
        report.save(json_path)
    print_plan(report)


def _print(report: TrainReport, out: Path) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False, soft_wrap=True)
    title, *lines = report.sentences()
    console.print(f"\n{title}", style="bold")
    for line in lines:
        console.print(line)
    console.print(f"\nthe run is in {out}; next:")
    for step in (f"inspect {out}", f"quantize {out}", f"export {out} {out}-onnx"):
        console.print(f"  quietformer {step}")
