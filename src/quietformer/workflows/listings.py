"""What there is to choose from: recipes, studies, normalizers and gates."""

from __future__ import annotations

from typing import Any

from quietformer.config.attention import gates, normalizers
from quietformer.config.options.study import RecipesOptions
from quietformer.config.recipe_files import built_in_recipes, read_recipe
from quietformer.config.registry import Registry
from quietformer.config.study import built_in_studies, find_study, read_study
from quietformer.errors import QuietformerError
from quietformer.progress import SILENT, Progress
from quietformer.results.listings import (
    RecipeEntry,
    RecipesReport,
    SpecEntry,
    SpecParameter,
    StudiesReport,
    StudyEntry,
    VariantsReport,
)
from quietformer.results.provenance import command_line


def recipes(name: str = "", options: RecipesOptions | None = None, progress: Progress = SILENT) -> RecipesReport:
    """The built-in recipes with their variants; or the recipe of this name in full."""
    variant = "" if options is None else options.variant
    if variant and not name:
        raise QuietformerError("--variant goes with a recipe: quietformer recipes NAME --variant VARIANT")
    found = []
    for key in [name] if name else built_in_recipes():
        progress.step(f"reading {key}")
        found.append(RecipeEntry(name=key, recipe=read_recipe(key, variant=variant)))
    words = [] if options is None else options.words()
    return RecipesReport(recipes=found, command=command_line("recipes", [name] if name else [], words))


def studies() -> StudiesReport:
    """The built-in studies."""
    found = {name: read_study(find_study(name)) for name in built_in_studies()}
    entries = [StudyEntry(name=name, runs=len(study.trials()), study=study) for name, study in found.items()]
    return StudiesReport(studies=entries, command=command_line("sweep", []))


def variants() -> VariantsReport:
    """The normalizers and gates with their parameters and defaults."""
    return VariantsReport(
        normalizers=_entries(normalizers), gates=_entries(gates), command=command_line("variants", [])
    )


def _entries(registry: Registry[Any]) -> list[SpecEntry]:
    found = []
    for name in registry:
        spec = registry[name]
        fields = [
            SpecParameter(name=field, default=info.default, meaning=info.description or "")
            for field, info in spec.model_fields.items()
        ]
        found.append(SpecEntry(name=name, meaning=(spec.__doc__ or "").strip().splitlines()[0], fields=fields))
    return found
