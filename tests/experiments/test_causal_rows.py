"""What rows of causal attention do, against the weights that Hugging Face's own attention gives."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from experiments.studies.causal_rows import GROUPS, measured, name_of, table
from quietformer.config.options.study import SweepOptions
from quietformer.config.recipe_files import read_recipe
from quietformer.data.unseen_data import validation_data
from quietformer.study.sweep import sweep
from tests.study.studies import write_study_file


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    path = write_study_file(folder, grid={"variant": ["vanilla", "clipped"]}, set={"data.length": 32})
    sweep(path, SweepOptions(out=folder / "out"))
    return folder / "out" / "runs"


def test_the_weight_on_the_first_token_is_that_of_hugging_faces_attention(runs):
    folder = runs / "vanilla,seed=0"
    found = measured(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    data = validation_data(read_recipe(str(folder / "recipe.yaml")), folder, model, 128)
    expected = {group: [] for group in GROUPS}
    for batch in data.evaluation:
        given = {key: value for key, value in batch.items() if key != "labels"}
        with torch.no_grad():
            weights = model(**given, output_attentions=True).attentions
        for low, high in GROUPS:
            expected[low, high] += [float(layer[:, :, low - 1 : high, 0].mean()) for layer in weights]
    for group, values in expected.items():
        assert found["on_the_first"][name_of(group)] == pytest.approx(sum(values) / len(values), rel=1e-5)
        assert found["dead"][name_of(group)] == 0


def test_rows_that_are_clipped_away_are_counted_and_told(runs):
    found = measured(runs / "clipped,seed=0")
    # Near uniform, as a model starts: one gamma clips long rows away and leaves short ones.
    assert found["dead"][name_of(GROUPS[-1])] > 0.5
    assert found["dead"][name_of(GROUPS[0])] == 0
    told = table({"runs": [{"variant": "clipped", **found}]}).splitlines()
    assert told[2].startswith("| clipped | ")
    assert f"| {100 * found['dead'][name_of(GROUPS[-1])]:.0f} / " in told[2]
