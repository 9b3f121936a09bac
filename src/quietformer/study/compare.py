"""`compare`: variants of one recipe under equal conditions."""

from __future__ import annotations

from quietformer.config.options.study import CompareOptions
from quietformer.config.recipe_files import DEFAULT, read_changes, read_recipe
from quietformer.config.study import Measures, Study
from quietformer.errors import QuietformerError
from quietformer.progress import SILENT, Progress
from quietformer.results.study import StudyReport
from quietformer.study.run import run_study


def compare(recipe: str = "", options: CompareOptions | None = None, progress: Progress = SILENT) -> StudyReport:
    """Train variants of a recipe, quantize and export each, and report them side by side."""
    options, name = options or CompareOptions(), recipe or DEFAULT
    return run_study(comparison(name, options), options, progress, typed=["compare", name])


def comparison(recipe: str, options: CompareOptions) -> Study:
    """The study that compares variants of a recipe."""
    found = read_recipe(recipe)
    variants = list(options.variants or found.variants)
    if not variants:
        raise QuietformerError(f"{recipe} has no variants to compare; add some under 'variants', or use sweep")
    measures = Measures(
        bits=options.bits, calibrations=options.calibrations, sequences=options.sequences, real=options.real, pages=True
    )
    return Study(
        name=f"{found.name}-compare", about=found.about, recipe=recipe, set=read_changes(options.set), grid={"variant": variants},
        seeds=tuple(range(options.seeds)), threads=options.threads, measures=measures,
    )  # fmt: skip
