"""Studies as files: every point with every seed, mistakes told before the first run."""

from __future__ import annotations

import datetime
import itertools

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from quietformer.config.study import (
    Measures,
    Study,
    bits_title,
    built_in_studies,
    find_study,
    quantization,
    read_study,
    trial_name,
)
from quietformer.errors import SpecError
from tests.commands import fails
from tests.study.studies import write_recipe_file, write_study_file


def test_every_point_of_the_grid_is_run_with_every_seed(tmp_path):
    path = write_study_file(
        tmp_path,
        set={"training.steps": 5},
        grid={"optimizer.learning_rate": [1e-3, 2e-3], "variant": ["vanilla", "gated"]},
        seeds=[3, 4],
    )
    trials = read_study(path).trials()
    wanted = set(itertools.product([1e-3, 2e-3], ["vanilla", "gated"], [3, 4]))
    assert {(one.at["optimizer.learning_rate"], one.at["variant"], one.seed) for one in trials} == wanted
    for one in trials:
        assert one.recipe.optimizer.learning_rate == one.at["optimizer.learning_rate"]
        assert (one.recipe.attention.gate is not None) == (one.at["variant"] == "gated")
        assert (one.recipe.seed, one.recipe.training.steps) == (one.seed, 5)


def test_a_study_has_variants_of_its_own_beside_those_of_its_recipe(tmp_path):
    own = {"half": {"attention.gate": "linear(pi_init=0.5)"}}
    path = write_study_file(tmp_path, variants=own, grid={"variant": ["vanilla", "half", "gated"]})
    gates = {one.at["variant"]: one.recipe.attention.gate for one in read_study(path).trials()}
    assert gates["vanilla"] is None
    assert (gates["half"].pi_init, gates["gated"].pi_init) == (0.5, 0.25)


def test_a_variant_has_the_last_word_over_what_all_runs_share_and_the_point_over_both(tmp_path):
    path = write_study_file(
        tmp_path,
        set={"attention.gate": "mlp"},
        grid={"variant": ["vanilla", "gated"], "attention.gate.scale": [2.0, 3.0]},
    )
    found = [(one.recipe.attention.gate.kind, one.recipe.attention.gate.scale) for one in read_study(path).trials()]
    assert sorted(found) == [("linear", 2.0), ("linear", 3.0), ("mlp", 2.0), ("mlp", 3.0)]


@pytest.mark.parametrize("name", built_in_studies())
def test_every_built_in_study_can_be_run(name):
    trials = read_study(find_study(name)).trials()
    assert len({one.name for one in trials}) == len(trials) > 1


def test_gamma_takes_alpha_back_and_alpha_gamma(tmp_path):
    path = write_study_file(tmp_path, grid={"variant": ["clipped"], "attention.normalizer.gamma": [0, -0.1]})
    normalizers = [one.recipe.attention.normalizer for one in read_study(path).trials()]
    assert [(one.gamma, one.alpha) for one in normalizers] == [(0, None), (-0.1, None)]
    path = write_study_file(
        tmp_path,
        set={"attention.normalizer": "clipped_softmax(gamma=-0.1)"},
        grid={"attention.normalizer.alpha": [3.0]},
    )
    assert read_study(path).trials()[0].recipe.attention.normalizer.gamma is None


def test_bits_ask_for_no_other_training(tmp_path):
    path = write_study_file(tmp_path, grid={"variant": ["vanilla", "gated"], "bits": ["w8a8", "w4a8"]})
    study = read_study(path)
    assert len(study.trials()) == 2
    assert study.measured.bits == ("w8a8", "w4a8")


def test_fewer_bits_have_ranges_by_squared_error_as_in_the_paper():
    assert quantization("w8a8").weights.kind == "minmax"
    assert quantization("W4A8").weights.kind == "mse"
    assert (quantization("w6a7").weight_bits, quantization("w6a7").activation_bits) == (6, 7)


def test_bits_may_ask_for_scales_per_token():
    spec = quantization("w4a8-token")
    assert (spec.weight_bits, spec.activation_bits, spec.granularity) == (4, 8, "token")
    assert quantization("w4a8").granularity == "tensor"
    assert [bits_title(bits) for bits in ("w8a8", "w4a8-token")] == ["W8A8", "W4A8 per token"]
    with pytest.raises(SpecError, match="bits are written like w8a8"):
        quantization("w8a8-channel")


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["a.x", "b.x", "variant"]), st.text(max_size=60) | st.floats(allow_nan=False), min_size=1
        ),
        min_size=1,
    )
)
@settings(deadline=None)
def test_a_name_is_a_folder_of_its_own_that_any_file_system_takes(points):
    for at in points:
        for alone in (True, False):
            name = trial_name(at, 0, alone=alone)
            assert 0 < len(name) <= 80
            assert "/" not in name
            assert not name.startswith(".")
            assert name.isascii()


def test_points_whose_names_fall_together_get_folders_of_their_own(tmp_path):
    path = write_study_file(tmp_path, grid={"about": ["a b", "a/b", "a?b"]})
    assert len({one.name for one in read_study(path).trials()}) == 3


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"grid": {}}, "grid"),
        ({"grid": {"optimizer.learning_rate": []}}, "learning_rate has no values"),
        ({"grid": {"optimizer.learning_rate": [1e-3, 1e-3]}}, "a value twice"),
        ({"grid": {"optimizer.learning_rat": [1e-3]}}, "learning_rat"),
        ({"grid": {"variant": ["gatd"]}}, "no variant 'gatd'"),
        ({"grid": {"variant": ["gated"]}, "seeds": [1, 1]}, "a seed twice"),
        ({"grid": {"optimizer.weight_decay": [0, 0.0]}}, "a value twice"),
        ({"grid": {"optimizer.betas": [[0.9, 0.99], [0.9, 0.990]]}}, "a value twice"),
        ({"grid": {"attention.gate": ["linear", "linear()"]}}, "are the same run"),
        ({"grid": {"seed": [1, 2]}}, "seed is no field to set"),
        ({"grid": {"variant": ["gated"]}, "set": {"seed": 5}}, "seed is no field to set"),
        ({"grid": {"bits": 8}}, r"bits must have a list of values, e\.g\. \[8\], got 8"),
        ({"grid": {"variant": "gated"}}, "variant must have a list of values"),
        ({"grid": {"variant": ["gated"]}, "seeds": 2}, r"seeds must be a list, e\.g\. \[0, 1\], got 2"),
        ({"grid": {"variant": ["gated"]}, "threads": 100_000}, "threads must be <= 1024"),
        ({"grid": {"bits": ["w99a8"]}}, "2 to 16 bits, got 'w99a8'"),
        (
            {"grid": {"variant": ["gated", "own"]}, "variants": {"own": {"attention.gate": "linear(pi_init=0.25)"}}},
            "same run",
        ),
        ({"grid": {"variant": ["gated"]}, "variants": {"spare": {"about": datetime.date(2020, 1, 1)}}}, "spare"),
        ({"grid": {"variant": ["gated"]}, "variants": {"spare": {"optimizer.learning_rat": 1}}}, "learning_rat"),
        ({"grid": {"variant": ["gated"]}, "measures": {1: 2}}, "1"),
        ({"grid": {"trainer": [{1: "a", "b": "c"}, {}]}}, "trainer"),
        ({"grid": {"trainer.x": [datetime.date(2020, 1, 1)]}}, "neither number"),
        ({"grid": {"model.config.foo": [float("nan")]}}, "neither number"),
        ({"grid": {"bits": ["8"]}}, "written like w8a8"),
        ({"grid": {"variant": ["gated"]}, "measures": {"bits": "int8"}}, "written like w8a8"),
        ({"grid": {"variant": ["gated"]}, "measurs": {}}, "measurs"),
        ({"grid": {"attention.normalizer.gamma": [-0.1]}}, "gamma"),
        ({"grid": {"variant": ["gated"]}, "recipe": "nowhere.yaml"}, "nowhere.yaml"),
    ],
)
def test_a_mistake_is_told_before_anything_is_run(tmp_path, fields, said):
    path = write_study_file(tmp_path, **fields)
    with pytest.raises(SpecError, match=said):
        read_study(path).trials()


def test_a_variant_of_the_recipe_cannot_give_a_seed_that_the_table_would_not_show(tmp_path):
    path = write_study_file(tmp_path, grid={"variant": ["lucky"]})
    recipe = yaml.safe_load((tmp_path / "recipe.yaml").read_text())
    recipe["variants"]["lucky"] = {"set": {"seed": 5}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    with pytest.raises(SpecError, match="'lucky' sets seed"):
        read_study(path).trials()


def test_a_variant_has_the_last_word_over_fields_that_all_runs_name_in_another_order(tmp_path):
    path = write_study_file(
        tmp_path,
        set={"attention.normalizer.alpha": 2.0, "attention.normalizer.kind": "clipped_softmax"},
        variants={"own": {"attention.normalizer": {"kind": "clipped_softmax"}, "attention.normalizer.alpha": 8.0}},
        grid={"variant": ["own"]},
    )
    assert read_study(path).trials()[0].recipe.attention.normalizer.alpha == 8.0


@pytest.mark.parametrize("value", ["2020-13-45", "!!int abc", "9" * 5000, "!!timestamp x"])
def test_values_that_there_are_not_are_one_line_too(tmp_path, value, run):
    path = write_study_file(tmp_path, grid={"variant": ["vanilla"]})
    path.write_text(path.read_text() + f"about: {value}\n")
    assert "study.yaml" in fails(run, "sweep", path)
    assert "about=" in fails(run, "compare", tmp_path / "recipe.yaml", "--set", f"about={value}")


def test_files_that_hold_nothing_or_no_text_say_so(tmp_path, run):
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    (tmp_path / "binary.yaml").write_bytes(bytes(range(256)))
    assert "is empty" in fails(run, "sweep", tmp_path / "empty.yaml")
    assert "no text file" in fails(run, "sweep", tmp_path / "binary.yaml")
    assert "is a folder" in fails(run, "sweep", tmp_path)
    assert "--variant goes with a recipe" in fails(run, "recipes", "--variant", "gated")


def test_a_study_survives_being_written_and_read(tmp_path):
    write_recipe_file(tmp_path)
    study = Study(
        recipe=str(tmp_path / "recipe.yaml"),
        grid={"variant": ["gated"]},
        seeds=(0, 2),
        measures=Measures(bits=("w6a8",)),
    )
    again = tmp_path / "again.yaml"
    again.write_text(yaml.safe_dump(study.to_dict()))
    assert read_study(again) == study


def test_the_points_of_a_grid_are_counted_before_they_are_listed():
    fields = ("steps", "keep", "log_every", "batch_size", "save_every", "evaluate_every")
    grid = {f"training.{field}": list(range(1, 60)) for field in fields}
    study = Study(recipe="small/opt", grid=grid)
    with pytest.raises(SpecError, match=rf"make {59**6} runs; a study has at most 2000"):
        study.trials()
    with pytest.raises(SpecError, match="make 3000 runs"):
        Study(recipe="small/opt", grid={"variant": ["vanilla"]}, seeds=list(range(3000))).trials()
