"""The paper's tables and figures: its own figures from the data file, what makes each of them, and what we measured.

The paper's figures are read from recipes/paper/figures.json and nowhere else; ours from the figures of finished studies.
The two are never in one table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quietformer.config.recipe_files import BUILT_IN, built_in_recipes, find_recipe, parse_yaml
from quietformer.config.spec import nearest
from quietformer.config.study import BITS, VARIANT, short
from quietformer.errors import SpecError, in_one_line
from quietformer.results.study_table import columns
from quietformer.study.paper_items import DOCUMENTS, ITEMS, Item

DATA = BUILT_IN / "paper" / "figures.json"

RESULTS = Path(__file__).resolve().parents[3] / "experiments" / "studies" / "finished"
"""Studies that we have run, as `compare` and `sweep` write them with --json. In a checkout: an installed package has none."""

STUDY = "study.json"

NEEDED = {"name", "study", "sentence", "rows", "command", "versions"}

BASELINE = "vanilla"

TITLES = {
    "fp16": "FP16", "fp32": "FP32", "inf": "max inf norm", "kurtosis": "avg kurtosis", "w8a8": "W8A8",
    "ln_gamma_wd": "LN gamma wd", "patch_ln": "patch LN", "weight_ranges": "weight ranges",
    "gated_linear": "linear gate", "gated_mlp": "MLP gate",
}  # fmt: skip

NOT_RUN, NOTHING = "not run here", "nothing to run"

HOW = (
    "DIR is a folder of your own. The paper measures on all of its validation data; compare and sweep take a part of it "
    "unless --sequences, or measures.sequences in the file, asks for more."
)

Quotes = list[tuple[dict[str, Any], str]]
"""What variants of the paper's recipes quote of it, each with `recipe:variant`."""


def paper_figures(folders: Sequence[Path] = ()) -> dict[str, Any]:
    """Every item with the paper's figures, the runs that make it, the commands, and our studies at whatever size."""
    data, quotes = json.loads(DATA.read_text(encoding="utf-8")), _quotes()
    places = [*sorted(RESULTS.glob("*.json")), *(folder / STUDY if folder.is_dir() else folder for folder in folders)]
    studies = [read_figures(place) for place in places]
    items: list[dict[str, Any]] = []
    placed: dict[int, list[str]] = {}
    for item in ITEMS:
        runs = _runs(item, quotes)
        belonging = [number for number, study in enumerate(studies) if belongs(study, item, runs)]
        for number in belonging:
            placed.setdefault(number, []).append(item.name)
        items.append(
            {
                "name": item.name,
                "section": item.section,
                "shows": item.shows,
                "key": item.key or None,
                "unit": item.unit,
                "paper": _tables(item, data[item.key], quotes, runs) if item.key else [],
                "runs": [{"recipe": recipe, "variants": variants} for recipe, variants in runs.items()],
                "commands": commands(item, runs),
                "files": dict(item.files),
                "note": item.note,
                "document": {"place": item.document, "holds": DOCUMENTS[item.document]} if item.document else None,
                "ours": [_ours(studies[number]) for number in belonging],
            }
        )
    elsewhere = [study["name"] for number, study in enumerate(studies) if number not in placed]
    given = [
        {"place": str(place), "name": study["name"], "items": placed.get(number, [])}
        for number, (place, study) in enumerate(zip(places, studies, strict=True))
    ][len(studies) - len(folders) :]
    return {"version": 1, "kind": "paper", "how": HOW, "items": items, "elsewhere": elsewhere, "given": given}


def only(figures: dict[str, Any], name: str) -> dict[str, Any]:
    """The figures of one item."""
    found = [item for item in figures["items"] if item["name"] == name.lower()]
    if not found:
        raise SpecError(
            f"the paper has no {name!r}{nearest(name.lower(), [item['name'] for item in figures['items']])}"
        )
    return figures | {"items": found}


def read_figures(place: Path) -> dict[str, Any]:
    """The figures of a study, from the file it left."""
    try:
        study = json.loads(place.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SpecError(f"{place} is not there; give a folder that `quietformer compare` or `sweep` wrote") from None
    except (OSError, ValueError, RecursionError) as error:
        raise SpecError(f"{place} cannot be read: {in_one_line(error)}") from None
    if not isinstance(study, dict) or study.get("kind") != "study" or not study.keys() >= NEEDED or not _shows(study):
        raise SpecError(f"{place} holds no study; give a folder that `quietformer compare` or `sweep` wrote")
    return study


def _shows(study: dict[str, Any]) -> bool:
    """Whether all that is shown of a study is in it, as it is where nobody has damaged it."""
    try:
        family_of(study["study"]["recipe"])
        varied(study)
        _table(_ours(study))
    except (SpecError, KeyError, TypeError, ValueError, AttributeError, IndexError):
        return False
    return True


# ---- the paper's
def _quotes() -> Quotes:
    """As the files have them: a recipe read in full would need torch."""
    found: Quotes = []
    for recipe in built_in_recipes():
        variants = parse_yaml(find_recipe(recipe)).get("variants") if recipe.startswith("paper/") else None
        for variant, content in (variants or {}).items():
            paper = dict((content or {}).get("paper") or {})
            also = paper.pop("also", [])
            found += [(quote, f"{recipe}:{variant}") for quote in ([paper] if paper else []) + also]
    return found


def _parts(content: Any) -> list[tuple[str, list[dict[str, Any]]]]:
    """The rows under one key by the name of their part: a list, lists by model, or what was found in a few words."""
    if isinstance(content, list):
        return [("", content)]
    parts = [(name, rows) for name, rows in content.items() if isinstance(rows, list) and isinstance(rows[0], dict)]
    return parts or [("", [content])]


def _tables(item: Item, content: Any, quotes: Quotes, runs: dict[str, list[str]]) -> list[dict[str, Any]]:
    tables = []
    for name, rows in _parts(content):
        columns = list(dict.fromkeys(key for row in rows for key in row))
        tables.append(
            {
                "name": name or item.unit,
                "columns": [{"key": key, "title": TITLES.get(key, key)} for key in columns],
                "rows": [
                    {"source": "paper", "row": row, "made_by": _made_by(item, name, row, quotes, runs)} for row in rows
                ],
            }
        )
    return tables


def _made_by(item: Item, part: str, row: dict[str, Any], quotes: Quotes, runs: dict[str, list[str]]) -> list[str]:
    """The variant that quotes this row; of a row about several runs all of them."""
    place = {"table": item.key} | ({"model": part} if part else {})
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


def _runs(item: Item, quotes: Quotes) -> dict[str, list[str]]:
    """The item's recipes with their variants, in the order of the recipes' files."""
    found: dict[str, list[str]] = {recipe: list(variants) for recipe, variants in item.runs.items()}
    for quote, run in quotes:
        if item.key and quote["table"] == item.key:
            recipe, _, variant = run.partition(":")
            found.setdefault(recipe, []).append(variant)
    return found


def commands(item: Item, runs: dict[str, list[str]]) -> list[str]:
    """What to type for the item at the paper's size."""
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
    """`bert`, `opt` or `vit` among the words of a name; nothing if it has none of them. A Llama stands beside OPT, as causal."""
    words = [{"llama": "opt"}.get(word, word) for word in re.findall("[a-z]+", Path(name).stem.lower())]
    return next((family for family in ("bert", "opt", "vit") if family in words), "")


def belongs(study: dict[str, Any], item: Item, runs: dict[str, list[str]]) -> bool:
    """Whether a study ran variants of the item, or varied the same fields of a model of its family."""
    if not item.key:
        return False
    recipe, grid = study["study"]["recipe"], study["study"]["grid"]
    if recipe.startswith("paper/") and (VARIANT in grid or recipe not in runs):
        asked = set(grid.get(VARIANT, ()))
        return bool((asked - {BASELINE} or asked) & set(runs.get(recipe, ())))
    fields, own = varied(study), item.axes - {VARIANT}
    same = bool(item.axes) and fields <= item.axes | item.columns | {BITS} and (bool(fields & own) or not own)
    return same and family_of(recipe) in {family_of(name) for name in runs}


def varied(study: dict[str, Any]) -> set[str]:
    """Short names of what differs between the runs; of `linear(pi_init=0.1)` and the like what is in the brackets."""
    names = {name for item in ITEMS for name in item.axes}
    found = {BITS} if len(study["study"]["measures"]["bits"]) > 1 else set()
    grid = study["study"]["grid"]
    for field, values in grid.items():
        if field == VARIANT and len(values) == 1 and len(grid) > 1:
            continue  # one for all runs, whose other fields differ
        inside = {word for value in values for word in re.findall(r"(\w+)'?\s*[=:]", str(value))} & names
        found |= inside or {short(field)}
    return found


def _ours(study: dict[str, Any]) -> dict[str, Any]:
    """What is shown of a study; what it quotes of the paper is left out, since the data file alone speaks for it."""
    return {
        "source": "ours",
        "name": study["name"],
        "recipe": study["study"]["recipe"],
        "sentence": study["sentence"],
        "size": _size(study),
        "rows": [{name: value for name, value in row.items() if name != "paper"} for row in study["rows"]],
        "command": study["command"],
        "versions": study["versions"],
    }


def _size(study: dict[str, Any]) -> dict[str, Any]:
    """How large the runs were; lists where they differ, empty ones where the file does not say."""
    runs = [run for run in study.get("trials", []) if "failed" not in run]
    seconds = [run["seconds"] for run in runs]
    return {
        "parameters": sorted({run["parameters"] for run in runs}),
        "steps": sorted({run["steps"] for run in runs}),
        "length": sorted({run["data"]["length"] for run in runs if "length" in run["data"]}),
        "seeds": len(study["study"]["seeds"]),
        "minutes": sum(seconds) / len(seconds) / 60 if seconds else None,
    }


# ---- in words
def quoted(value: Any) -> str:
    """A figure of the paper's as the data file has it: mean ± standard deviation where there are two, else a list."""
    if isinstance(value, list):
        return (" ± " if len(value) == 2 else ", ").join(map(quoted, value))
    return value if isinstance(value, str) else f"{value:.15g}"


def runs_in_words(item: dict[str, Any]) -> str:
    """`paper/bert-base: vanilla, mlp-4; paper/bert-mnli`."""
    return "; ".join(": ".join(filter(None, (run["recipe"], ", ".join(run["variants"])))) for run in item["runs"])


def size_in_words(size: dict[str, Any]) -> str:
    """`0.50M parameters, 2,000 steps, length 64, 2 seeds, 3.1 min a run`."""

    def span(values: list[float], form: str) -> str:
        return " to ".join(dict.fromkeys(format(value, form) for value in (values[0], values[-1])))

    parts = []
    if size["parameters"]:
        parts.append(f"{span([count / 1e6 for count in size['parameters']], '.2f')}M parameters")
    if size["steps"]:
        parts.append(f"{span(size['steps'], ',')} steps")
    if size["length"]:
        parts.append(f"length {span(size['length'], ',')}")
    parts.append(f"{size['seeds']} seed" + ("s" if size["seeds"] > 1 else ""))
    if size["minutes"] is not None:
        parts.append(f"{size['minutes']:.1f} min a run")
    return ", ".join(parts)


def overview(figures: dict[str, Any]) -> list[tuple[str, ...]]:
    """One line an item, the heading first: its name, section, what it shows, the paper's figures, ours, the recipes."""
    lines: list[tuple[str, ...]] = [("item", "section", "shows", "the paper's", "ours", "recipe")]
    for item in figures["items"]:
        rows = [row for table in item["paper"] for row in table["rows"]]
        told = "finding" if any("finding" in row["row"] for row in rows) else f"{len(rows)} rows"
        studies = len(item["ours"])
        ours = item["document"]["place"] if item["document"] else NOT_RUN if item["commands"] else NOTHING
        if studies:
            ours = f"{studies} stud{'ies' if studies > 1 else 'y'}"
        recipes = ", ".join(run["recipe"] for run in item["runs"])
        lines.append((item["name"], item["section"], item["shows"], told if rows else "-", ours, recipes or "-"))
    return lines


def add_tables_(figures: dict[str, Any]) -> None:
    """Each study of ours as the table that it prints itself: titles, and rows of text."""
    for study in (study for item in figures["items"] for study in item["ours"]):
        study["table"] = _table(study)
        study["size"]["words"] = size_in_words(study["size"])


def _table(study: dict[str, Any]) -> dict[str, Any]:
    chosen = columns(study["rows"])
    return {
        "columns": [title or "setting" for title, _ in chosen],
        "rows": [[cell(row) for _, cell in chosen] for row in study["rows"]],
    }
