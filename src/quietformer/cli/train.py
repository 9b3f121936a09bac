"""`quietformer train`: a recipe carried out, gone on with, or only planned."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import typer

from quietformer.cli.progress import working
from quietformer.errors import QuietformerError
from quietformer.files import check_place, write_json


def train(
    recipe: str = typer.Argument(
        "", metavar="[RECIPE]", help="A recipe file or a built-in name ('quietformer recipes'); small/opt by default."
    ),
    out: Path | None = typer.Option(None, "--out", metavar="DIR", help="The run folder; the same again goes on."),
    variant: str = typer.Option("", "--variant", metavar="NAME", help="One of the recipe's variants."),
    changes: list[str] = typer.Option(
        [], "--set", metavar="KEY=VALUE", help="Change a field of the recipe, e.g. training.steps=100; repeatable."
    ),
    plan: bool = typer.Option(False, "--plan", help="Print size, memory, work and time of the run; train nothing."),
    devices: int = typer.Option(1, "--devices", min=1, help="With --plan: how many devices share the work."),
    measure: bool = typer.Option(True, help="With --plan: time a few steps on this machine."),
    json_path: Path | None = typer.Option(None, "--json", metavar="PATH", help="Also write the figures as JSON."),
) -> None:
    """Train a model from a recipe; killed at any moment, the same command goes on and ends with the same weights.

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
        figures = run(chosen, out, say=_say if first else lambda text: None)
    except StoppedError as stopped:
        if first:
            _say(str(stopped))
        raise typer.Exit(130) from None
    if first:
        write_json(json_path, figures)
        _print(figures, out)
    return None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _plan(recipe: str, variant: str, changes: list[str], devices: int, measure: bool, json_path: Path | None) -> None:
    with working("planning"):
        from quietformer.cli.plan_table import print_plan
        from quietformer.config.recipe_files import DEFAULT, read_recipe
        from quietformer.training.plan import plan

        figures = plan(
            read_recipe(recipe or DEFAULT, variant=variant, changes=changes), devices=devices, measure=measure
        )
    write_json(json_path, figures)
    print_plan(figures)


def _print(figures: dict[str, Any], out: Path) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(
        Text(f"\n{figures['recipe']}", style="bold").append(f"  {figures['attention']}, seed {figures['seed']}")
    )
    found, outliers = figures["validation"], figures["outliers"]
    if "perplexity" in found:
        beside = f"  (a bigram model: {figures['bigram_perplexity']:.4g})" if "bigram_perplexity" in figures else ""
        console.print(f"validation perplexity {found['perplexity']:.4g}{beside}")
    elif "int8" in found:
        best = figures["best"]
        kept = "none was" if best["value"] is None else f"{best['value']:.4g} at step {best['step']:,} was"
        console.print(
            f"{best['measure']} against the original: {found['float']:.4g}, in simulated INT8 {found['int8']:.4g}; the best, "
            f"{kept}, is kept"
        )
    else:
        console.print(
            f"validation accuracy {found['accuracy']:.2%}  (the largest class: {figures['majority_accuracy']:.2%})"
        )
    if "infinity_norm" in outliers:
        console.print(f"outliers: infinity norm {outliers['infinity_norm']:.4g}, kurtosis {outliers['kurtosis']:.4g}")
    console.print(f"{figures['steps']:,} steps, {figures['steps_per_second']:.2f} a second")
    console.print(f"\nthe run is in {out}; next:")
    for step in (f"inspect {out}", f"quantize {out}", f"export {out} {out}-onnx"):
        console.print(f"  quietformer {step}")
