"""The reports of `recipes`, `variants` and `sweep` without a file: what there is to choose from."""

from __future__ import annotations

from typing import Literal

from pydantic import JsonValue

from quietformer.results.base import Record, Report
from quietformer.results.spec_serialization import RecipeField, StudyField
from quietformer.results.tables import Table

TEXT = frozenset({0, 1, 2})


class RecipeEntry(Record):
    """A recipe by the name that `train` and `compare` take, every default written out."""

    name: str
    recipe: RecipeField

    @property
    def lines(self) -> list[str]:
        found = [self.name, f"  {self.recipe.about}"]
        return found + ([f"  variants: {', '.join(self.recipe.variants)}"] if self.recipe.variants else [])


class RecipesReport(Report):
    """The built-in recipes, or one recipe."""

    kind: Literal["recipes"] = "recipes"
    recipes: list[RecipeEntry]

    def sentences(self) -> list[str]:
        return [line for entry in self.recipes for line in entry.lines]

    def tables(self) -> list[Table]:
        rows = [[entry.name, entry.recipe.about, ", ".join(entry.recipe.variants)] for entry in self.recipes]
        return [Table("Recipes", ["recipe", "about", "variants"], rows, TEXT)]


class StudyEntry(Record):
    """A built-in study by the name that `sweep` takes."""

    name: str
    runs: int
    study: StudyField


class StudiesReport(Report):
    """The built-in studies."""

    kind: Literal["studies"] = "studies"
    studies: list[StudyEntry]

    def sentences(self) -> list[str]:
        return [
            line
            for entry in self.studies
            for line in (entry.name, f"  {entry.study.about}", f"  {entry.runs} runs of {entry.study.recipe}")
        ]

    def tables(self) -> list[Table]:
        rows = [[entry.name, entry.study.about, str(entry.runs)] for entry in self.studies]
        return [Table("Studies", ["study", "about", "runs"], rows, frozenset({0, 1}))]


class SpecParameter(Record):
    """A parameter of a normalizer or a gate."""

    name: str
    default: JsonValue
    meaning: str


class SpecEntry(Record):
    """A normalizer or a gate by its registered name."""

    name: str
    meaning: str
    fields: list[SpecParameter]


class VariantsReport(Report):
    """Every normalizer and gate, with parameters and defaults."""

    kind: Literal["variants"] = "variants"
    normalizers: list[SpecEntry]
    gates: list[SpecEntry]

    def tables(self) -> list[Table]:
        found = []
        for title, entries in (("Normalizers (--attention)", self.normalizers), ("Gates (--gate)", self.gates)):
            rows = []
            for entry in entries:
                rows.append([entry.name, "", entry.meaning])
                rows += [["", f"{field.name} = {field.default}", field.meaning] for field in entry.fields]
            found.append(Table(title, ["name", "parameter", "meaning"], rows, TEXT))
        return found

    def sentences(self) -> list[str]:
        return ["Write one as name(field=value), e.g. 'clipped_softmax(alpha=4)' or 'linear(pi_init=0.25)'."]
