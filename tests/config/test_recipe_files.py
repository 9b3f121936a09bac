"""Recipes: strict, built on one another, changed from the command line, and the same again when read back."""

from __future__ import annotations

import pytest
import yaml

from experiments import recipe_fields
from quietformer.config.recipe import Recipe
from quietformer.config.recipe_files import BUILT_IN, built_in_recipes, changed, find_recipe, read_recipe, write_recipe
from quietformer.errors import SpecError
from quietformer.training.arguments import check_trainer_fields, split_batch

BASE = """
name: base
task: causal
model:
  config: {model_type: opt, hidden_size: 64}
optimizer: {learning_rate: 1e-3, betas: [0.9, 0.95]}
schedule: {warmup_steps: 10}
training: {steps: 100, batch_size: 4}
variants:
  gated: {set: {attention.gate: "linear(pi_init=0.25)"}, paper: {w8a8: 16.0}}
"""


@pytest.fixture
def base(tmp_path):
    path = tmp_path / "base.yaml"
    path.write_text(BASE)
    return path


def test_every_built_in_recipe_reads_and_comes_back_the_same(tmp_path):
    assert {"small/opt", "small/bert", "small/vit-digits", "paper/bert-base"} <= set(built_in_recipes())
    for name in built_in_recipes():
        recipe = read_recipe(name)
        write_recipe(tmp_path / "again.yaml", recipe)
        assert read_recipe(str(tmp_path / "again.yaml")) == recipe, name
        assert recipe.about, f"{name} does not say what it is"


def test_what_extends_another_keeps_what_it_does_not_change(base, tmp_path):
    (tmp_path / "top.yaml").write_text("extends: base.yaml\nname: top\nmodel: {config: {hidden_size: 128}}\n")
    below, top = read_recipe(str(base)), read_recipe(str(tmp_path / "top.yaml"))
    assert top.model.config == {"model_type": "opt", "hidden_size": 128}
    assert (top.name, top.optimizer, top.training) == ("top", below.optimizer, below.training)


def test_epochs_take_the_place_of_steps(base, tmp_path):
    assert read_recipe(str(base), changes=["training.epochs=2"]).training.steps == 0
    (tmp_path / "top.yaml").write_text("extends: base.yaml\ntraining: {epochs: 3}\nschedule: {warmup_epochs: 1}\n")
    top = read_recipe(str(tmp_path / "top.yaml"))
    assert (top.training.steps, top.training.epochs, top.schedule.warmup_steps) == (0, 3.0, 0)


def test_numbers_written_as_people_write_them_are_numbers(base):
    recipe = read_recipe(str(base), changes=["optimizer.learning_rate=3e-4", "optimizer.weight_decay=1E-2"])
    assert (recipe.optimizer.learning_rate, recipe.optimizer.weight_decay) == (3e-4, 1e-2)


def test_a_variant_changes_what_it_says_and_brings_its_figures(base):
    recipe = read_recipe(str(base), variant="gated")
    assert str(recipe.attention.gate) == "linear(pi_init=0.25)"
    assert (recipe.name, recipe.paper, recipe.variants) == ("base-gated", {"w8a8": 16.0}, {})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["trainin.steps=1"], "recipe has no field 'trainin'; did you mean 'training'?"),
        (["training.stepss=1"], "training has no field 'stepss'; did you mean 'steps'?"),
        (["training.steps=many"], "training: steps: .*got 'many'"),
        (["training.batch_size=0"], "training: batch_size must be >= 1, got 0"),
        (["attention.normalizer=cliped_softmax"], "did you mean 'clipped_softmax'"),
        (["attention.gate=linear(pi=0.5)"], "linear has no field 'pi'"),
        (["regularizers=[activation_penalti]"], "did you mean 'activation_penalty'"),
        (["data.train=[]"], "data: train names no source"),
        (["data.train={path: a, dataset: b}"], "source: give one of builtin, path and dataset"),
        (["task=masqued"], "task: .*got 'masqued'"),
        (["task=pairs"], "needs the column of the second text"),
        (["patch_norm=true"], "patch_norm and augment are for task 'images'"),
        (["name.first=x"], "cannot set name.first: name is 'base', not a mapping"),
        (["nonsense"], "cannot read 'nonsense'; write KEY=VALUE"),
        (["optimizer.betas=[0.9, 1.5]"], r"betas must lie in \[0, 1\)"),
        (["paper.date=2024-01-01"], "neither number, text, list nor mapping"),
        (["training.steps=0"], "training: give steps or epochs"),
        (["model.config={}"], "config needs a model_type"),
    ],
)
def test_a_mistake_is_named_with_what_would_be_right(base, changes, message):
    with pytest.raises(SpecError, match=message):
        read_recipe(str(base), changes=changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a list", "must hold a mapping of fields, got list"),
        ("name: [unclosed", "is not YAML"),
        ("name: a\nname: b", "the key 'name' twice"),
        ("extends: top.yaml", "extends itself"),
        ("extends: nothing.yaml", "nothing.yaml is not there"),
        ("extends: [a, b]", "extends names one recipe"),
        ("!!python/object/apply:os.system ['true']", "is not YAML"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path, text, message):
    (tmp_path / "top.yaml").write_text(text)
    with pytest.raises(SpecError, match=message) as error:
        read_recipe(str(tmp_path / "top.yaml"))
    assert "\n" not in str(error.value)


def test_a_name_that_no_file_can_have_is_no_recipe():
    with pytest.raises(SpecError, match="names no recipe: File name too long"):
        find_recipe("a" * 300)


def test_an_unknown_recipe_names_the_nearest():
    with pytest.raises(SpecError, match="unknown recipe 'small/ot'; did you mean 'small/opt'"):
        read_recipe("small/ot")


def test_the_trainers_own_fields_are_known_by_name():
    check_trainer_fields({"report_to": "tensorboard", "dataloader_num_workers": 2})
    with pytest.raises(SpecError, match="trainer has no field 'report_too'; did you mean 'report_to'"):
        check_trainer_fields({"report_too": "none"})
    with pytest.raises(SpecError, match=r"trainer\.learning_rate is set by optimizer\.learning_rate"):
        check_trainer_fields({"learning_rate": 1.0})


@pytest.mark.parametrize(
    ("batch", "micro", "devices", "expected"),
    [(192, 48, 1, (48, 4)), (256, 0, 2, (128, 1)), (16, 5, 1, (4, 4)), (7, 2, 1, (1, 7)), (64, 100, 4, (16, 1))],
)
def test_a_batch_divides_into_equal_parts(batch, micro, devices, expected):
    size, times = split_batch(batch, micro, devices)
    assert (size, times) == expected
    assert size * times * devices == batch
    with pytest.raises(SpecError, match="does not divide among 3 processes"):
        split_batch(16, 0, 3)


def test_text_that_looks_like_a_number_stays_text(base, tmp_path):
    recipe = read_recipe(str(base), changes=["name='1e5'"])
    write_recipe(tmp_path / "again.yaml", recipe)
    assert read_recipe(str(tmp_path / "again.yaml")).name == "1e5"


def test_what_a_recipe_lacks_is_named_with_the_choices(tmp_path):
    (tmp_path / "r.yaml").write_text("training: {steps: 1}\nmodel: {pretrained: minilm}\n")
    with pytest.raises(SpecError, match="recipe: task is missing; choose from masked, causal, pairs, images"):
        read_recipe(str(tmp_path / "r.yaml"))


def test_giving_both_lengths_keeps_the_one_that_is_not_zero(base):
    assert read_recipe(str(base), changes=["training.steps=2", "training.epochs=0"]).training.steps == 2


@pytest.mark.parametrize("field", ["load_best_model_at_end", "push_to_hub", "save_only_model"])
def test_what_would_break_a_promise_is_refused(field):
    with pytest.raises(SpecError, match=f"trainer.{field} does not go with"):
        check_trainer_fields({field: True})


def test_the_recipes_are_those_of_the_package():
    assert (BUILT_IN / "small" / "opt.yaml").is_file()


def test_the_example_in_the_reference_of_fields_works(tmp_path):
    (tmp_path / "mine.yaml").write_text(recipe_fields.EXAMPLE)
    assert read_recipe(str(tmp_path / "mine.yaml")).task == "causal"


def test_names_of_the_first_release_are_still_read(tmp_path):
    """The task `distill` was `imitate` and the section `qat` was `rounding`, in files, variants and changes."""
    fields = {
        "task": "imitate",
        "model": {"pretrained": "minilm"},
        "training": {"steps": 2},
        "rounding": {"share": 0.5},
        "variants": {"late": {"set": {"rounding.share": 0.25}}},
    }
    (tmp_path / "old.yaml").write_text(yaml.safe_dump(fields))
    name = str(tmp_path / "old.yaml")
    assert (read_recipe(name).task, read_recipe(name).qat.share) == ("distill", 0.5)
    assert read_recipe(name, variant="late").qat.share == 0.25
    assert read_recipe(name, changes=["rounding.calibration=8"]).qat.calibration == 8
    assert changed(read_recipe(name), ["rounding.share=0.75"]).qat.share == 0.75
    (tmp_path / "new.yaml").write_text(f"extends: {name}\nqat: {{calibration: 4}}\n")
    below = read_recipe(str(tmp_path / "new.yaml")).qat
    assert (below.share, below.calibration) == (0.5, 4)
    with pytest.raises(SpecError, match="both 'rounding' and 'qat'"):
        Recipe(**(fields | {"qat": {"share": 0.1}}))


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "aliases written out, it holds more than 100000 values"),
        ("a: &a [*a]", "part of"),
        ("a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 900)), "deeper than 30 levels"),
        (f"a: {'[' * 100_000}", "nested deeper than 30 levels"),
        (f"a: {'{b: ' * 3000}1{'}' * 3000}", "nested deeper than 30 levels"),
    ],
)
def test_yaml_that_stands_for_more_than_it_says_is_refused(tmp_path, text, message):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match=f"recipe.yaml is not YAML: .*{message}"):
        read_recipe(str(path))


@pytest.mark.parametrize("value", ["1:30", "017", "1:30:22.5", "0b11", "0o17"])
def test_numbers_that_only_yaml_reads_as_numbers_are_refused(value):
    """YAML 1.1 takes 1:30 for 90 and 017 for 15."""
    with pytest.raises(SpecError, match=rf"seed: .* got '{value}'"):
        read_recipe("small/opt", changes=[f"seed={value}"])


def test_numbers_of_every_usual_form_are_numbers():
    forms = {
        "1e-4": 1e-4,
        "1.5e+3": 1500.0,
        ".5": 0.5,
        "5.": 5.0,
        "+2": 2.0,
        "1_000.0": 1000.0,
        "12E3": 12000.0,
        "0": 0.0,
    }
    for text, value in forms.items():
        assert read_recipe("small/opt", changes=[f"optimizer.weight_decay={text}"]).optimizer.weight_decay == value
    assert read_recipe("small/opt", changes=["training.log_every=1_000"]).training.log_every == 1000


@pytest.mark.parametrize(
    "change",
    ["tokenizer.vocabulary=1000000000000", "training.steps=10000000000", f"training.steps={'9' * 4000}", "data.length=100000000",
     "training.batch_size=1000000000", "training.keep=1000000", "data.hold_out=1000000000000", "seed=4294967296",
     "training.log_every=99999999999"],
)  # fmt: skip
def test_sizes_past_any_machine_are_refused_in_a_line_one_can_read(change):
    with pytest.raises(
        SpecError, match=rf"{change.partition('=')[0].rpartition('.')[2]} must be <=? \d+, got"
    ) as refused:
        read_recipe("small/opt", changes=[change])
    assert len(str(refused.value)) < 200
