"""`train`: a recipe carried out or resumed in a run folder, or only planned."""

from __future__ import annotations

from pathlib import Path

from quietformer.config.options.train import PlanOptions, RecipeOptions, TrainOptions
from quietformer.config.recipe import Recipe
from quietformer.config.recipe_files import DEFAULT, read_recipe
from quietformer.errors import QuietformerError
from quietformer.progress import SILENT, Progress
from quietformer.results.plan import PlanReport
from quietformer.results.provenance import command_line
from quietformer.results.train import TrainReport
from quietformer.training.plan import plan
from quietformer.training.run import train as train_recipe
from quietformer.training.run_folder import recipe_in


def train(recipe: str = "", options: TrainOptions | None = None, progress: Progress = SILENT) -> TrainReport:
    """Train a model from a recipe. Killed at any moment, the same call resumes and ends with the same weights.

    `recipe` is a recipe file or a built-in name; by default small/opt, or the recipe of the run that is in the folder.
    """
    options = options or TrainOptions()
    if options.out is None:
        raise QuietformerError("no run folder given; say where the run goes with --out DIR")
    return train_recipe(_chosen(recipe, options.out, options), options.out, progress)


def plan_training(recipe: str = "", options: PlanOptions | None = None, progress: Progress = SILENT) -> PlanReport:
    """Size, memory, work and time of a training run; nothing is trained."""
    options = options or PlanOptions()
    chosen = read_recipe(recipe or DEFAULT, variant=options.variant, changes=options.set)
    report = plan(chosen, devices=options.devices, measure=options.measure, progress=progress)
    typed = command_line("train", [recipe or DEFAULT, "--plan"], options.words())
    return report.model_copy(update={"command": typed})


def _chosen(recipe: str, out: Path, options: RecipeOptions) -> Recipe:
    """The recipe that is named, or else that of the run in the folder, or else the default one."""
    there = recipe_in(out) if out.is_dir() and not recipe else None
    if there is not None and (options.variant or options.set):
        raise QuietformerError(f"{out} has its recipe already; --variant and --set are for a new run")
    return there or read_recipe(recipe or DEFAULT, variant=options.variant, changes=options.set)
