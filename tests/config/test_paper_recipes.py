"""The paper's recipes against the tables of docs/recipes.md and against the paper's figures, completely and both ways."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoConfig, AutoModelForCausalLM

from quietformer.attention.gates.all_heads import AllHeadsGate
from quietformer.attention.gates.linear import LinearGate
from quietformer.attention.gates.mlp import MLPGate
from quietformer.attention.normalizers.clipped_softmax import ClippedSoftmax
from quietformer.attention.normalizers.softmax import Softmax
from quietformer.config.attention import AttentionSpec, gates, normalizers
from quietformer.config.recipe import Recipe, Source
from quietformer.config.recipe_files import BUILT_IN, built_in_recipes, read_recipe
from quietformer.config.regularizers import regularizers
from quietformer.config.spec_base import Spec
from quietformer.training.model_building import build_model

DOCS = Path(__file__).parents[2] / "docs" / "recipes.md"
FIGURES: dict[str, Any] = json.loads((BUILT_IN / "paper" / "figures.json").read_text())
RECIPES = [name for name in built_in_recipes() if name.startswith("paper/")]
VARIANTS = [(name, variant) for name in RECIPES for variant in read_recipe(name).variants]
UNTOLD = {
    "name", "about", "variants", "paper", "data.processes", "training.log_every", "training.evaluate_every",
    "training.save_every", "training.outliers_every", "trainer.dataloader_num_workers",
}  # fmt: skip
"""Fields that say how often a run speaks and how many processes serve it, and not what is trained."""
HOME = {
    ("main", "BERT-base (MLM ppl)"): "paper/bert-base",
    ("main", "OPT-125m (CLM ppl)"): "paper/opt-125m",
    ("main", "ViT-S/16 (top-1)"): "paper/vit-s16",
    ("bert_clipped_gamma_zeta", ""): "paper/bert-base",
    ("bert_full", ""): "paper/bert-base",
    ("opt125m_full", ""): "paper/opt-125m",
    ("vit_full", ""): "paper/vit-s16",
    ("vit_gamma_zeta_150_epochs", ""): "paper/vit-s16-150",
    ("fine_tuning_opt_1.3b", ""): "paper/opt-1.3b-gated-finetuning",
}
STUDIES = {"alpha_study", "bias_init_study"}
NOT_RUNS = {"bert_low_bit", "compute_hours_A100"}
"""Tables about runs that other tables have already."""


@dataclass(frozen=True)
class Line:
    """One cell of a hyper-parameter table: the field of a recipe, and the value the table gives it."""

    column: str
    field: str
    value: str
    where: str


@cache
def resolved(name: str, variant: str = "") -> Recipe:
    """A recipe by its name, with its variant after a colon or apart."""
    name, _, after = name.partition(":")
    return read_recipe(name, variant=variant or after)


def tables() -> Iterator[list[list[str]]]:
    """Every table of the page as rows of cells, the heading first."""
    for block in re.findall(r"(?:^\|.*\|\n)+", DOCS.read_text(), flags=re.MULTILINE):
        rows = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in block.strip().split("\n")]
        yield [[cell.strip("| ") for cell in row] for row in (rows[0], *rows[2:])]


def documented() -> Iterator[Line]:
    for heading, *rows in tables():
        if heading[1] == "recipe field":
            for row in rows:
                assert len(row) == len(heading), row
                for column, cell in zip(heading[2:-1], row[2:-1], strict=True):
                    yield Line(column.strip("`"), row[1].strip("`"), cell.strip("`"), row[-1])


LINES = list(documented())
COLUMNS = sorted({line.column for line in LINES})


def look_up(recipe: Any, path: str) -> Any:
    for step in path.split("."):
        recipe = getattr(recipe, step) if isinstance(recipe, Spec) else recipe[int(step) if step.isdigit() else step]
    return recipe


def plain(value: Any) -> Any:
    """A field as the page writes it."""
    if isinstance(value, Source):
        return f"{value.name} {value.split}"
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def written(field: str, text: str) -> Any:
    """A cell of the page as the recipe holds it."""
    value = yaml.safe_load(text)
    if field == "attention.gate":
        return None if value is None else gates.read(value)
    if field == "attention.normalizer":
        return normalizers.read(value)
    if field == "regularizers":
        return [regularizers.read(item) for item in value]
    if isinstance(value, str) and re.fullmatch(r"[\d.]+e-?\d+", value):
        return float(value)  # YAML 1.1 takes 1e-4 for text
    return value


def changed(spec: Spec, prefix: str = "") -> Iterator[str]:
    """The dotted fields that are not as the library has them by default."""
    for name, field in type(spec).model_fields.items():
        value, path = getattr(spec, name), prefix + name
        if value == field.get_default(call_default_factory=True):
            continue  # a section may have other defaults inside another than by itself
        if isinstance(value, Spec) and not value.kind:
            yield from changed(value, f"{path}.")
        elif isinstance(value, dict) and name in ("config", "trainer"):
            yield from (f"{path}.{key}" for key in value)
        else:
            yield path


@pytest.mark.parametrize("column", COLUMNS)
def test_every_line_of_a_table_is_what_the_recipe_says(column: str) -> None:
    for line in LINES:
        if line.column == column:
            value, expected = plain(look_up(resolved(column), line.field)), written(line.field, line.value)
            assert (line.field, value) == (line.field, expected)
            assert (line.field, type(value)) == (line.field, type(expected))  # 0 is not False


def test_every_line_names_its_section_or_says_that_the_paper_is_silent() -> None:
    for line in LINES:
        assert re.match(r"(\d(\.\d)?|[ABC]\.\d)\b|\*\*silent\*\*", line.where), line


@pytest.mark.parametrize("name", RECIPES)
def test_what_a_paper_recipe_changes_is_in_its_table(name: str) -> None:
    columns = [column for column in COLUMNS if column.partition(":")[0] == name]
    assert columns
    for column in columns:
        told = {line.field for line in LINES if line.column == column}
        assert set(changed(resolved(column))) - UNTOLD - told == set()


def quotes(paper: dict[str, Any]) -> list[dict[str, Any]]:
    """What one variant quotes: the paper reports some runs in more than one table."""
    first = {key: value for key, value in paper.items() if key != "also"}
    return [first, *paper.get("also", [])] if first else []


def rows_of_runs() -> list[tuple[str, str, dict[str, Any]]]:
    """Every row of the paper that is a training run: its table, the model in the main table, the row."""
    found = []
    for table, content in FIGURES.items():
        parts = content.items() if table == "main" else [("", content)]
        if table not in STUDIES | NOT_RUNS:
            found += [(table, model, row) for model, rows in parts if isinstance(rows, list) for row in rows]
    return found


QUOTED = [
    (name, variant, quote)
    for name, variant in VARIANTS
    for quote in quotes(resolved(name, variant).paper)
    if quote["table"] not in STUDIES
]


def row_of(quote: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    row = {key: value for key, value in quote.items() if key not in ("table", "model")}
    return quote["table"], quote.get("model", ""), row


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_every_variant_resolves(name: str, variant: str) -> None:
    recipe = resolved(name, variant)
    assert recipe.name.endswith(f"-{variant}")
    assert not recipe.variants


def test_every_quoted_row_is_the_papers_and_every_row_of_the_paper_is_quoted_once() -> None:
    def key(row: tuple[str, str, dict[str, Any]]) -> str:
        return json.dumps(row, sort_keys=True)

    assert sorted(key(row_of(quote)) for *_, quote in QUOTED) == sorted(map(key, rows_of_runs()))


@pytest.mark.parametrize(("name", "variant", "quote"), QUOTED, ids=lambda value: str(value)[:40])
def test_a_row_is_quoted_by_the_recipe_of_its_model(name: str, variant: str, quote: dict[str, Any]) -> None:
    table, model, row = row_of(quote)
    if table == "opt_bigger":
        size, method = row["method"].split()
        assert (name, variant) == (f"paper/{size.lower()}", method)
    else:
        assert name == HOME[table, model]


def attention_of(row: dict[str, Any]) -> AttentionSpec | None:
    """The attention that the words of a row of the paper describe; None if they leave it open."""
    if pair := row.get("gamma:zeta"):
        gamma, zeta = map(float, pair.split(":"))
        return AttentionSpec(normalizer=Softmax() if pair == "0:1" else ClippedSoftmax(gamma=gamma, zeta=zeta))
    method = row["method"]
    if found := re.search(r"gamma (-[\d./]+)", method):
        return AttentionSpec(normalizer=ClippedSoftmax(gamma=float(Fraction(found[1]))))
    if found := re.search(r"linear pi ([\d.]+)", method):
        return AttentionSpec(gate=LinearGate(pi_init=float(found[1])))
    if found := re.search(r"MLP n_hid (\d+)", method):
        return AttentionSpec(gate=MLPGate(hidden=int(found[1])))
    if "all-heads" in method:
        return AttentionSpec(gate=AllHeadsGate())
    return AttentionSpec() if "vanilla" in method else None


@pytest.mark.parametrize(("name", "variant", "quote"), QUOTED, ids=lambda value: str(value)[:40])
def test_a_variant_is_what_the_words_of_its_row_say(name: str, variant: str, quote: dict[str, Any]) -> None:
    recipe, row = resolved(name, variant), row_of(quote)[2]
    expected = attention_of(row)
    if expected is None:
        assert "gated" in row["method"]
        assert recipe.attention.gate is not None
    else:
        assert recipe.attention == expected
        method = row.get("method", "")
        assert recipe.optimizer.decay_norms == (row.get("ln_gamma_wd") == "yes" or "LN wd" in method)
        assert recipe.patch_norm == (row.get("patch_ln") == "yes" or "patch LN" in method)


def test_every_alpha_of_the_papers_study_has_a_variant_that_runs_at_every_length() -> None:
    study, seen = FIGURES["alpha_study"], []
    for variant in read_recipe("paper/bert-6l").variants:
        recipe = resolved("paper/bert-6l", variant)
        if recipe.paper.get("table") == "alpha_study":
            assert recipe.attention == AttentionSpec(normalizer=ClippedSoftmax(alpha=recipe.paper["alpha"]))
            assert (recipe.paper["T"], recipe.paper["finding"]) == (study["T"], study["finding"])
            seen.append(recipe.paper["alpha"])
    assert seen == study["alpha"]
    for length in study["T"]:
        assert read_recipe("paper/bert-6l", changes=[f"data.length={length}"]).data.length == length


@pytest.mark.parametrize("name", ["paper/bert-6l", "paper/vit-s16-150"])
def test_the_study_of_open_gates_spans_what_the_paper_calls_good_and_goes_beyond(name: str) -> None:
    opened = []
    for variant in resolved(name).variants:
        recipe = resolved(name, variant)
        if recipe.paper.get("table") == "bias_init_study":
            assert isinstance(recipe.attention.gate, LinearGate)
            assert recipe.paper["finding"] == FIGURES["bias_init_study"]["finding"]
            opened.append(recipe.attention.gate.pi_init)
    assert opened == sorted(opened)
    assert opened[0] < 0.1 < 0.25 < 0.5 < 0.9 < opened[-1]
    assert {0.1, 0.25, 0.5, 0.9} <= set(opened)


def sizes() -> dict[str, tuple[str, int]]:
    found = next(rows for heading, *rows in tables() if heading[-1] == "parameters")
    return {name.strip("`"): (stated, int(count.strip("`"))) for name, stated, count in found}


@cache
def parameters(name: str) -> int:
    with torch.device("meta"):
        model = build_model(resolved(name))
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", RECIPES)
def test_the_page_gives_the_number_of_parameters(name: str) -> None:
    assert parameters(name) == sizes()[name][1]


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in ("paper/bert-6l", "paper/opt-350m")])
def test_a_model_has_the_size_the_paper_states(name: str) -> None:
    number, unit = re.fullmatch(r"([\d.]+)([MB])", sizes()[name][0]).groups()
    one = {"M": 10**6, "B": 10**9}[unit]
    last_digit = 10 ** -len(number.partition(".")[2])
    assert abs(parameters(name) - float(number) * one) <= max(0.01 * float(number), last_digit / 2) * one


def test_the_350m_class_differs_from_the_published_model_by_a_final_layer_norm() -> None:
    published = AutoConfig.for_model(
        "opt", vocab_size=50272, hidden_size=1024, word_embed_proj_dim=512, num_hidden_layers=24,
        num_attention_heads=16, ffn_dim=4096, do_layer_norm_before=False,
    )  # fmt: skip
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(published)
    theirs = sum(parameter.numel() for parameter in model.parameters())
    assert parameters("paper/opt-350m") - theirs == 2 * 1024
