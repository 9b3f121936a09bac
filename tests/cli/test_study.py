"""`quietformer compare` and `sweep`: their lists, their options, and one line for every mistake."""

from __future__ import annotations

import json

import pytest
import yaml

from quietformer.cli.main import app
from quietformer.config.options.study import CompareOptions, SweepOptions
from quietformer.config.study import built_in_studies
from tests.commands import fails
from tests.study.studies import write_recipe_file


def test_sweep_without_a_file_lists_the_built_in_studies(run, tmp_path):
    code, out, _ = run("sweep", "--json", tmp_path / "s.json")
    assert code == 0
    listed = json.loads((tmp_path / "s.json").read_text())["studies"]
    assert [entry["name"] for entry in listed] == built_in_studies()
    for entry in listed:
        assert f"{entry['name']}\n  {entry['study']['about']}\n  {entry['runs']} runs" in out


@pytest.mark.parametrize(("name", "options"), [("compare", CompareOptions), ("sweep", SweepOptions)])
def test_the_options_of_the_command_are_those_of_the_options_object(run, name, options):
    _, out, _ = run(name, "--help")
    shown = " ".join(out.split())
    for field in options.model_fields.values():
        assert " ".join(field.description.split()) in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", 0], "compare: seeds must be >= 1, got 0"),
        (["--bits", "8"], "written like w8a8"),
        (["--bits", "w8a8,"], "names with commas"),
        (["--set", "training.steps"], "training.steps"),
        (["--jobs", 2, "--ray", "auto"], "give --jobs or --ray, not both"),
        (["--variants", "gatd"], "did you mean 'gated'?"),
    ],
)
def test_mistakes_are_one_line_before_anything_is_run(run, tmp_path, arguments, message):
    recipe = write_recipe_file(tmp_path)
    assert message in fails(run, "compare", recipe, "--out", tmp_path / "o", *arguments)
    assert not (tmp_path / "o").exists()


def test_a_recipe_without_variants_cannot_be_compared(run, tmp_path):
    recipe = write_recipe_file(tmp_path)
    fields = yaml.safe_load(recipe.read_text())
    del fields["variants"]
    recipe.write_text(yaml.safe_dump(fields))
    assert "no variants to compare" in fails(run, "compare", recipe, "--out", tmp_path / "o")


def test_the_commands_are_there():
    assert {"compare", "sweep", "paper", "recipes", "variants"} <= {command.name for command in app.registered_commands}
