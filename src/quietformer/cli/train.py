"""`quietformer train`: a recipe carried out, resumed, or only planned."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import typer
from pydantic import Field

from quietformer.cli.printing import print_report
from quietformer.cli.progress import TerminalProgress, working
from quietformer.cli.recipe_argument import RecipeArgument
from quietformer.cli.report_files import JsonOutput
from quietformer.config.options.train import PlanOptions, RecipeOptions, TrainOptions
from quietformer.errors import QuietformerError
from quietformer.progress import SILENT


class TrainOutput(JsonOutput):
    """Train, or print what it would take; in Python the latter is `plan_training`."""

    plan: bool = Field(default=False, description="Print size, memory, work and time of the run; train nothing.")


def train(
    options: TrainOptions,
    planned: PlanOptions,
    output: TrainOutput,
    recipe: RecipeArgument = "",
) -> None:
    """Train a model from a recipe. Killed at any moment, the same command resumes and ends with the same weights.

    On several devices or machines: torchrun --nproc-per-node 8 -m quietformer train RECIPE --out DIR, or accelerate launch.
    """
    output.check()
    if not output.plan and (asked := planned.model_fields_set - set(RecipeOptions.model_fields)):
        raise QuietformerError(f"--{min(asked)} goes with --plan; add it, or leave out --{min(asked)}")
    first = os.environ.get("RANK", "0") == "0"
    with working("starting", show=first):
        from quietformer.training.interrupt import StoppedError
        from quietformer.workflows import train as workflow
    if output.plan:
        return _plan(recipe, planned, output)
    try:
        with TerminalProgress() as progress:
            report = workflow.train(recipe, options, progress if first else SILENT)
    except StoppedError as stopped:
        if first:
            print(stopped, file=sys.stderr, flush=True)
        raise typer.Exit(130) from None
    if first:
        output.write(report)
        print_report(report)
        _next_steps(Path(str(options.out)))
    return None


def _plan(recipe: str, options: PlanOptions, output: TrainOutput) -> None:
    from quietformer.workflows.train import plan_training

    with working("planning"):
        report = plan_training(recipe, options)
    output.write(report)
    print_report(report)


def _next_steps(out: Path) -> None:
    print(f"\nthe run is in {out}; next:")
    for step in (f"inspect {out}", f"quantize {out}", f"export {out} {out}-onnx"):
        print(f"  quietformer {step}")
