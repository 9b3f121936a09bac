"""Data to measure a healed model on: it chooses nothing, and nothing of it is trained on."""

from __future__ import annotations

import pytest

from quietformer.config.options.retrofit import RetrofitOptions
from quietformer.config.recipe import Source
from quietformer.data.training_data import training_data
from quietformer.data.unseen_data import measuring_data
from quietformer.errors import QuietformerError
from quietformer.models.open_any import open_model
from quietformer.workflows.retrofit_recipe import KnownModel, retrofit_recipe
from tests.training.pretrained import tiny_pretrained
from tests.training.recipes import write_prose

SEQUENCES = 20


@pytest.fixture
def setting(tmp_path):
    folder = tiny_pretrained(tmp_path / "model")
    model = open_model(str(folder))
    options = RetrofitOptions(texts=(str(write_prose(tmp_path / "text.txt")),), sequences=SEQUENCES, length=24)
    recipe = retrofit_recipe(KnownModel.of(str(folder), model), options)
    return model, recipe, training_data(recipe, tmp_path)


def rows_of(batches):
    return {
        tuple(ids[mask.bool()].tolist())
        for batch in batches
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    }


def test_what_is_reported_is_neither_trained_on_nor_used_to_choose(setting):
    model, recipe, data = setting
    measured = measuring_data(recipe, data, model, (), SEQUENCES)

    def tokens(rows):
        return {tuple(map(int, row["input_ids"])) for row in rows.take(range(len(rows)), None)}

    asked = rows_of(measured.evaluation)
    assert 0.8 * SEQUENCES <= len(asked) <= SEQUENCES  # what stands in the text twice is left out
    assert not asked & tokens(data.rows)
    assert not asked & tokens(data.validation)
    assert rows_of(measured.calibration(0)) <= tokens(data.rows)
    assert rows_of(measured.calibration(0)) != rows_of(measured.calibration(1)) or len(data.rows) <= 128


def test_other_text_is_measured_on_where_it_is_given(setting, tmp_path):
    model, recipe, data = setting
    other = tmp_path / "other.txt"
    other.write_text("\n".join(f"A line of its own, number {number}." for number in range(30)))
    measured = measuring_data(recipe, data, model, (Source(path=str(other)),), SEQUENCES)
    assert measured.info.evaluation == {str(other): SEQUENCES}
    assert measured.info.train == len(data.rows) + len(data.held_out)  # nothing is held out for measuring
    assert len(rows_of(measured.evaluation)) == SEQUENCES


def test_several_texts_get_equal_shares(setting, tmp_path):
    model, recipe, data = setting
    for name in ("one", "two"):
        (tmp_path / f"{name}.txt").write_text("\n".join(f"Line {number} of text {name}." for number in range(40)))
    sources = tuple(Source(path=str(tmp_path / f"{name}.txt")) for name in ("one", "two"))
    measured = measuring_data(recipe, data, model, sources, SEQUENCES)
    assert list(measured.info.evaluation.values()) == [10, 10]
    assert len(rows_of(measured.evaluation)) == 20


def test_what_chose_the_checkpoint_is_never_what_is_reported(setting, tmp_path):
    model, recipe, data = setting
    everything = recipe.model_copy(update={"data": recipe.data.model_copy(update={"validation_limit": 0})})
    with pytest.raises(QuietformerError, match="nothing is left to measure on"):
        measuring_data(everything, data, model, (), SEQUENCES)
