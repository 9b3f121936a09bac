"""The paper's tables and figures: its own results from the data file, what makes each of them, and what we measured.

The paper's results are read from recipes/paper/figures.json and nowhere else; ours from the reports of finished studies.
The two are never in one table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from pydantic import JsonValue

from quietformer.config.options.study import PaperOptions
from quietformer.config.recipe_files import BUILT_IN, built_in_recipes, find_recipe, parse_yaml
from quietformer.config.study import BITS, VARIANT, short
from quietformer.errors import QuietformerError
from quietformer.progress import SILENT, Progress
from quietformer.results.paper import (
    Document,
    GivenStudy,
    OurStudy,
    PaperColumn,
    PaperItem,
    PaperReport,
    PaperRow,
    PaperTable,
    RecipeRuns,
    StudySize,
)
from quietformer.results.provenance import command_line
from quietformer.results.study import StudyReport
from quietformer.results.trial import Values
from quietformer.study.paper_items import DOCUMENTS, ITEMS, Item

DATA = BUILT_IN / "paper" / "figures.json"

RESULTS = Path(__file__).resolve().parents[3] / "experiments" / "studies" / "finished"
"""Studies that we have run, as `compare` and `sweep` write them with --json. In a checkout: an installed package has none."""

STUDY = "study.json"

BASELINE = "vanilla"

TITLES = {
    "fp16": "FP16", "fp32": "FP32", "inf": "max inf norm", "kurtosis": "avg kurtosis", "w8a8": "W8A8",
    "ln_gamma_wd": "LN gamma wd", "patch_ln": "patch LN", "weight_ranges": "weight ranges",
    "gated_linear": "linear gate", "gated_mlp": "MLP gate",
}  # fmt: skip

Quotes = list[tuple[Values, str]]
"""What variants of the paper's recipes quote of it, each with `recipe:variant`."""

Runs = Mapping[str, Sequence[str]]
"""Variants by recipe."""


def paper(item: str = "", options: PaperOptions | None = None, progress: Progress = SILENT) -> PaperReport:
    """Every table and figure of the paper, or one: its results, ours, and the commands that make it."""
    options = options or PaperOptions()
    progress.step("reading")
    data: dict[str, JsonValue] = json.loads(DATA.read_text(encoding="utf-8"))
    quotes = _quotes()
    given = [folder / STUDY if folder.is_dir() else folder for folder in options.ours]
    studies = [read_report(place) for place in (*sorted(RESULTS.glob("*.json")), *given)]
    items: list[PaperItem] = []
    placed: list[list[str]] = [[] for _ in studies]
    for one in ITEMS:
        runs = _runs(one, quotes)
        ours = [place for place, study in enumerate(studies) if belongs(study, one, runs)]
        for place in ours:
            placed[place].append(one.name)
        items.append(_item(one, runs, _tables(one, data[one.key], quotes, runs) if one.key else [], studies, ours))
    asked = zip(given, studies[len(studies) - len(given) :], placed[len(studies) - len(given) :], strict=True)
    report = PaperReport(
        items=items,
        elsewhere=[study.name for study, names in zip(studies, placed, strict=True) if not names],
        given=[GivenStudy(place=str(place), name=study.name, items=names) for place, study, names in asked],
        command=command_line("paper", [item] if item else [], options.words()),
    )
    return report.only(item) if item else report


def _item(
    item: Item, runs: Runs, tables: list[PaperTable], studies: Sequence[StudyReport], ours: Sequence[int]
) -> PaperItem:
    return PaperItem(
        name=item.name,
        section=item.section,
        shows=item.shows,
        key=item.key or None,
        unit=item.unit,
        paper=tables,
        runs=[RecipeRuns(recipe=recipe, variants=list(variants)) for recipe, variants in runs.items()],
        commands=commands(item, runs),
        files=dict(item.files),
        note=item.note,
        document=Document(place=item.document, holds=DOCUMENTS[item.document]) if item.document else None,
        ours=[_ours(studies[place]) for place in ours],
    )


def read_report(place: Path) -> StudyReport:
    """The report of a study, from the file it left."""
    if not place.exists():
        raise QuietformerError(f"{place} does not exist; give a folder that `quietformer compare` or `sweep` wrote")
    return StudyReport.read(place)


# ---- the paper's
def _quotes() -> Quotes:
    """As the files have them: a recipe read in full would need torch."""
    found: Quotes = []
    for recipe in built_in_recipes():
        variants: Any = parse_yaml(find_recipe(recipe)).get("variants") if recipe.startswith("paper/") else None
        for variant, content in (variants or {}).items():
            paper: Values = dict((content or {}).get("paper") or {})
            also = cast(list[Values], paper.pop("also", []))
            found += [(quote, f"{recipe}:{variant}") for quote in ([paper] if paper else []) + also]
    return found


def _parts(content: JsonValue) -> list[tuple[str, list[Values]]]:
    """The rows under one key by the name of their part: a list, lists by model, or what was found in a few words."""
    if isinstance(content, list):
        return [("", cast(list[Values], content))]
    assert isinstance(content, dict)
    parts = [
        (name, cast(list[Values], rows))
        for name, rows in content.items()
        if isinstance(rows, list) and isinstance(rows[0], dict)
    ]
    return parts or [("", [content])]


def _tables(item: Item, content: JsonValue, quotes: Quotes, runs: Runs) -> list[PaperTable]:
    tables = []
    for name, rows in _parts(content):
        columns = list(dict.fromkeys(key for row in rows for key in row))
        tables.append(
            PaperTable(
                name=name or item.unit,
                columns=[PaperColumn(key=key, title=TITLES.get(key, key)) for key in columns],
                rows=[PaperRow(row=row, made_by=_made_by(item, name, row, quotes, runs)) for row in rows],
            )
        )
    return tables


def _made_by(item: Item, part: str, row: Values, quotes: Quotes, runs: Runs) -> list[str]:
    """The variant that quotes this row; of a row about several runs all of them."""
    place: Values = {"table": item.key, **({"model": part} if part else {})}
    found = [run for quote, run in quotes if quote == place | row]
    if found:
        return found
    family = family_of(str(row.get("model", "")))
    return [
        f"{recipe}:{variant}"
        for recipe, variants in runs.items()
        for variant in variants
        if family in ("", family_of(recipe))
    ]


def _runs(item: Item, quotes: Quotes) -> Runs:
    """The item's recipes with their variants, in the order of the recipes' files."""
    found: dict[str, list[str]] = {recipe: list(variants) for recipe, variants in item.runs.items()}
    for quote, run in quotes:
        if item.key and quote["table"] == item.key:
            recipe, _, variant = run.partition(":")
            found.setdefault(recipe, []).append(variant)
    return found


def commands(item: Item, runs: Runs) -> list[str]:
    """What to type to make the item at the paper's size."""
    compared = [
        f"quietformer compare {recipe} --variants {','.join(variants)} --seeds {item.seeds} "
        + (f"{item.options} " if item.options else "")
        + f"--out DIR/{recipe.partition('/')[2]}"
        for recipe, variants in runs.items()
        if item.seeds
    ]
    return [*compared, *item.then]


# ---- ours
def family_of(name: str) -> str:
    """`bert`, `opt` or `vit` among the words of a name; empty if it has none. A Llama counts as OPT: both are causal."""
    words = [{"llama": "opt"}.get(word, word) for word in re.findall("[a-z]+", Path(name).stem.lower())]
    return next((family for family in ("bert", "opt", "vit") if family in words), "")


def belongs(report: StudyReport, item: Item, runs: Runs) -> bool:
    """Whether a study ran variants of the item, or varied the same fields of a model of its family."""
    if not item.key:
        return False
    recipe, grid = report.study.recipe, report.study.grid
    if recipe.startswith("paper/") and (VARIANT in grid or recipe not in runs):
        asked = set(grid.get(VARIANT, ()))
        return bool((asked - {BASELINE} or asked) & set(runs.get(recipe, ())))
    fields, own = varied(report), item.axes - {VARIANT}
    same = bool(item.axes) and fields <= item.axes | item.columns | {BITS} and (bool(fields & own) or not own)
    return same and family_of(recipe) in {family_of(name) for name in runs}


def varied(report: StudyReport) -> set[str]:
    """Short names of what differs between the runs; of `linear(pi_init=0.1)` and the like what is in the brackets."""
    names = {name for item in ITEMS for name in item.axes}
    found = {BITS} if len(report.study.measures.bits) > 1 else set()
    grid = report.study.grid
    for field, values in grid.items():
        if field == VARIANT and len(values) == 1 and len(grid) > 1:
            continue  # one for all runs, whose other fields differ
        inside = {word for value in values for word in re.findall(r"(\w+)'?\s*[=:]", str(value))} & names
        found |= inside or {short(field)}
    return found


def _ours(report: StudyReport) -> OurStudy:
    return OurStudy(
        name=report.name,
        recipe=report.study.recipe,
        primary=report.metric,
        sentence=report.sentence,
        size=_size(report),
        rows=[row.model_copy(update={"paper": {}}) for row in report.rows],
        command=report.command,
        versions=report.versions,
    )


def _size(report: StudyReport) -> StudySize:
    results = [run.result for run in report.trials if run.result is not None]
    seconds = [result.seconds for result in results]
    return StudySize(
        parameters=sorted({result.parameters for result in results}),
        steps=sorted({result.steps for result in results}),
        length=sorted({result.data.length for result in results if result.data.length is not None}),
        seeds=len(report.study.seeds),
        minutes=sum(seconds) / len(seconds) / 60 if seconds else None,
    )
