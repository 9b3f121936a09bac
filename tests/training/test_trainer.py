"""The Trainer: losses against the models' own, optimizer groups, regularizers, and what a finished run leaves."""

from __future__ import annotations

import json
import math

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSequenceClassification

import quietformer as qf
from quietformer.attention.find_layers import CORE
from quietformer.config.recipe import Recipe
from quietformer.data.training_data import training_data
from quietformer.errors import QuietformerError
from quietformer.results.train import TrainReport
from quietformer.training.arguments import set_sizes_, training_arguments
from quietformer.training.example_scores import example_scores
from quietformer.training.regularizers import ActivationPenalty, RangePenalty
from quietformer.training.run import make_trainer, train
from quietformer.training.strategies import strategy_for
from quietformer.training.strategies.base import Prepared, Setting
from tests.tiny_models import build, inputs
from tests.told import Remembered
from tests.training.recipes import tiny_recipe, write_prose

GATED = {"gate": "linear(pi_init=0.5)"}
BOTH = {"normalizer": "clipped_softmax(alpha=2, warmup_steps=6)", **GATED}


@pytest.fixture(scope="module")
def prose(tmp_path_factory):
    return write_prose(tmp_path_factory.mktemp("prose") / "text.txt")


def trainer_for(recipe, folder):
    arguments = training_arguments(recipe, folder)
    shape = (8, 1) if recipe.task == "images" else (0, 0)
    data = training_data(recipe, folder, image_shape=shape)
    set_sizes_(arguments, recipe, recipe.training.steps)
    strategy = strategy_for(recipe, Prepared())
    setting = Setting(recipe, folder, arguments, recipe.training.steps)
    return make_trainer(setting, strategy, strategy.model(data, None), data, [])


@pytest.mark.parametrize("task", ["masked", "causal"])
def test_the_loss_is_the_models_own(prose, tmp_path, task):
    trainer = trainer_for(tiny_recipe(task, prose, model={"dropout": 0.0}), tmp_path)
    rows = [trainer.train_dataset[index] for index in range(6)]
    batch = trainer.data_collator(rows)
    theirs = trainer.model(**batch).loss
    assert float(trainer.compute_loss(trainer.model, dict(batch))) == pytest.approx(float(theirs), rel=1e-6)
    scores = example_scores(trainer.model(input_ids=batch["input_ids"]).logits, batch["labels"], task)
    assert float(scores[:, 0].sum() / scores[:, 1].sum()) == pytest.approx(float(theirs), rel=1e-5)


@pytest.mark.parametrize("task", ["masked", "causal", "images"])
def test_accumulating_gradients_changes_nothing(prose, tmp_path, task):
    """Masked batches hold different numbers of labels, so a mean of means would differ."""
    weights = []
    for micro in (0, 2):
        recipe = tiny_recipe(
            task, "digits" if task == "images" else prose, model={"dropout": 0.0},
            training={"steps": 3, "batch_size": 8, "micro_batch": micro, "evaluate_every": 0},
        )  # fmt: skip
        trainer = trainer_for(recipe, tmp_path / str(micro))
        trainer.train()
        assert trainer.args.gradient_accumulation_steps == (4 if micro else 1)
        weights.append(dict(trainer.model.named_parameters()))
    for name, value in weights[0].items():
        torch.testing.assert_close(value, weights[1][name], rtol=1e-4, atol=1e-5, msg=name)


def test_layer_norms_decay_only_if_asked_and_gates_have_a_rate_of_their_own(prose, tmp_path):
    def groups(normalizer="softmax", **optimizer):
        attention = GATED | {"normalizer": normalizer}
        recipe = tiny_recipe("causal", prose, optimizer={"weight_decay": 0.1, **optimizer}, attention=attention)
        trainer = trainer_for(recipe, tmp_path)
        names = {parameter: name for name, parameter in trainer.model.named_parameters()}
        made = trainer.create_optimizer().param_groups
        return {names[p]: (group["lr"], group["weight_decay"]) for group in made for p in group["params"]}

    plain = groups(learning_rate=1e-3)
    assert plain["model.decoder.layers.0.fc1.weight"] == (1e-3, 0.1)
    assert plain["model.decoder.layers.0.final_layer_norm.weight"] == (1e-3, 0.0)
    assert plain["model.decoder.layers.0.fc1.bias"] == (1e-3, 0.0)
    other = groups(learning_rate=1e-3, decay_norms=True, gate_factor=10.0)
    assert plain.keys() == other.keys()
    for name, (rate, decay) in other.items():
        assert rate == (1e-2 if f".{CORE}." in name else 1e-3), name
        assert decay == (0.0 if name.endswith("bias") else 0.1), name
    third = groups(learning_rate=1e-3, norm_factor=5.0)
    assert {name for name, (rate, _) in third.items() if rate == 5e-3} == {
        name for name in plain if "layer_norm" in name
    }
    assert {rate for rate, _ in third.values()} == {1e-3, 5e-3}
    sinks = groups(learning_rate=1e-3, gate_factor=10.0, norm_factor=5.0, normalizer="learned_sink")
    assert {rate for name, (rate, _) in sinks.items() if f".{CORE}." in name} == {1e-2}


def test_the_activation_penalty_is_its_formula(prose, tmp_path):
    recipe = tiny_recipe(
        "masked", prose, model={"dropout": 0.0}, regularizers=["activation_penalty(strength=5e4, threshold=0.01)"]
    )
    trainer = trainer_for(recipe, tmp_path)
    trainer.current_gradient_accumulation_steps = 1
    batch = trainer.data_collator([trainer.train_dataset[index] for index in range(4)])
    seen = []
    for layer in trainer.model.bert.encoder.layer:
        layer.output.dense.register_forward_hook(lambda module, args, output: seen.append(output.detach().double()))
    penalised = float(trainer.compute_loss(trainer.model, dict(batch)))
    plain = float(trainer.model(**batch).loss)
    terms = [(x.abs() - 0.01).clamp(min=0).square().mean() for x in seen[:2]]
    assert penalised - plain == pytest.approx(5e4 * float(sum(terms) / 2), rel=1e-4)


def test_a_penalty_needs_a_site_the_model_has():
    with pytest.raises(QuietformerError, match="has no tensor 'nowhere' for the activation penalty; none"):
        ActivationPenalty(site="nowhere").build(torch.nn.Linear(2, 2))
    with pytest.raises(QuietformerError, match=r"'ffn_norm.middle'.*it has attention_norm, .*ffn_output"):
        RangePenalty(sites=("ffn_norm", "ffn_norm.middle")).build(build("bert"))


def test_the_range_penalty_goes_through_a_recipe_file(prose):
    recipe = tiny_recipe("masked", prose, regularizers=[{"kind": "range_penalty", "sites": ["ffn_norm", "ffn_output"]}])
    assert recipe.regularizers == (RangePenalty(sites=("ffn_norm", "ffn_output")),)
    assert Recipe(**json.loads(json.dumps(recipe.to_dict()))) == recipe
    assert RangePenalty(sites="ffn_norm").sites == ("ffn_norm",)


def test_the_range_penalty_is_its_formula_and_padding_counts_nowhere():
    model, given = build("bert"), inputs("bert", padded=True)
    seen = []
    for layer in model.bert.encoder.layer:
        layer.output.LayerNorm.register_forward_hook(lambda module, args, output: seen.append((args[0], output)))
    term = RangePenalty(strength=3.0, deviations=0.5, sites=("ffn_norm.input", "ffn_norm")).build(model)
    model(**given)
    real = given["attention_mask"].bool()
    expected = []
    for tensors in seen:
        for x in tensors:
            x = x[real].detach().double()
            expected.append((x.abs() / x.std() - 0.5).clamp(min=0).square().mean())
    found = term.term()
    assert found.requires_grad
    assert float(found) == pytest.approx(3.0 * float(sum(expected) / len(expected)), rel=1e-5)
    assert term.term() is None
    term.detach_()
    assert not any(module._forward_hooks for module in model.modules() if module not in
                   [layer.output.LayerNorm for layer in model.bert.encoder.layer])  # fmt: skip


@pytest.mark.parametrize(
    "attention", [{}, {"normalizer": "clipped_softmax(alpha=2, warmup_steps=6)", **GATED}], ids=["plain", "ours"]
)
@pytest.mark.parametrize("task", ["masked", "causal"])
def test_a_run_leaves_a_model_and_says_all_about_it(prose, tmp_path, task, attention):
    recipe = tiny_recipe(task, prose, attention=attention)
    told = Remembered()
    report = train(recipe, tmp_path / "run", told)
    run = tmp_path / "run"
    assert TrainReport.read(run / "figures.json") == report
    assert yaml.safe_load((run / "recipe.yaml").read_text()) == json.loads(json.dumps(recipe.to_dict()))
    auto = AutoModelForMaskedLM if task == "masked" else AutoModelForCausalLM
    model = qf.load(run) if attention else auto.from_pretrained(run)
    assert report.parameters == sum(p.numel() for p in model.parameters())
    losses = [row["loss"] for row in report.log if "loss" in row]
    assert len(losses) == 4
    assert losses[-1] < losses[0]
    assert report.validation.perplexity == pytest.approx(math.exp(report.validation.nll))
    assert {"torch", "transformers", "quietformer"} <= report.versions.keys()
    assert any("outliers/ffn_infinity_norm" in row for row in report.log)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["checkpoint-12", "checkpoint-8"]
    assert not list(run.rglob("*.bin")) + list(run.rglob("*.pt")) + list(run.rglob("*.pth"))
    if attention:
        assert {int(core.normalizer.step) for _, core in qf.attention_cores(model)} == {12}
    # The second time there is nothing to do.
    assert train(recipe, run, told) == report
    assert "is finished" in told.said[-1]


def test_images_train_and_are_measured(tmp_path):
    recipe = tiny_recipe(
        "images", "digits", patch_norm=True, training={"steps": 30, "batch_size": 32, "evaluate_every": 0},
        optimizer={"learning_rate": 5e-3}, augment={"flip": 0.5, "mixup": 0.2, "label_smoothing": 0.1},
    )  # fmt: skip
    report = train(recipe, tmp_path / "run")
    assert report.validation.accuracy > 0.2  # ten classes
    model = qf.load(tmp_path / "run")
    assert model.config.num_labels == 10
    assert report.outliers.infinity_norm > 0


def test_pairs_learn_a_rule(tmp_path):
    """Whether both sides are the same word: a new model can learn it, and the classes keep their names."""
    words = ["apple", "pear", "plum", "fig"]
    lines = ["first\tsecond\tanswer"]
    for number in range(400):
        one, other = words[number % 4], words[(number // 4) % 4]
        lines.append(f"{one}\t{other}\t{'same' if one == other else 'other'}")
    (tmp_path / "pairs.tsv").write_text("\n".join(lines))
    recipe = tiny_recipe(
        "masked", tmp_path / "pairs.tsv", optimizer={"learning_rate": 3e-3}, model={"dropout": 0.0, "init_std": 0.15},
        data={"length": 12, "hold_out": 40, "train": {
            "path": str(tmp_path / "pairs.tsv"), "text": "first", "second": "second", "label": "answer"}},
        training={"steps": 120, "batch_size": 16, "evaluate_every": 0},
    ).model_copy(update={"task": "pairs"})  # fmt: skip
    report = train(recipe, tmp_path / "run")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run")
    assert model.config.id2label == {0: "other", 1: "same"}
    assert report.validation.accuracy > 0.85
    assert report.majority_accuracy == pytest.approx(0.75, abs=0.15)  # a quarter are the same


def test_a_stream_trains_without_knowing_its_length(prose, tmp_path):
    data = {"streaming": True, "shuffle_buffer": 20}
    report = train(tiny_recipe("causal", prose, data=data, training={"evaluate_every": 0}), tmp_path / "run")
    assert report.data.train is None
    assert report.data.validation == 16
    with pytest.raises(QuietformerError, match=r"a stream has no epochs; give training\.steps"):
        train(tiny_recipe("causal", prose, data=data, training={"steps": 0, "epochs": 1}), tmp_path / "other")


def test_tensorboard_hears_of_the_outliers(prose, tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "logs"))
    train(tiny_recipe("masked", prose, trainer={"report_to": "tensorboard"}), tmp_path / "run")
    events = EventAccumulator(str(next((tmp_path / "logs").rglob("events*")).parent))
    events.Reload()
    assert any("ffn_infinity_norm" in tag for tag in events.Tags()["scalars"])
    assert any("perplexity" in tag for tag in events.Tags()["scalars"])


@pytest.mark.parametrize(
    "extra", [{"precision": "bf16"}, {"gradient_checkpointing": True}], ids=["bf16", "checkpointing"]
)
def test_the_trainers_ways_of_saving_memory_work_with_our_attention(prose, tmp_path, extra):
    recipe = tiny_recipe("causal", prose, attention=GATED, training={"evaluate_every": 0, **extra})
    report = train(recipe, tmp_path / "run")
    losses = [row["loss"] for row in report.log if "loss" in row]
    assert losses[-1] < losses[0]
    assert next(qf.load(tmp_path / "run").parameters()).dtype == torch.float32


def weights_of(run):
    return {name: value for path in run.glob("*.safetensors") for name, value in load_file(path).items()}


@pytest.mark.parametrize(
    "changes", [{"evaluate_every": 2}, {"save_every": 1}, {"outliers_every": 1}, {"log_every": 1}], ids=str
)
def test_looking_at_a_run_does_not_change_it(prose, tmp_path, changes):
    plain = {"steps": 8, "evaluate_every": 0, "save_every": 0, "outliers_every": 0}
    for name, training in (("plain", plain), ("watched", plain | changes)):
        train(tiny_recipe("masked", prose, training=training, attention=BOTH), tmp_path / name)
    one, other = weights_of(tmp_path / "plain"), weights_of(tmp_path / "watched")
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_workers_do_not_change_the_data(prose, tmp_path):
    for workers in (0, 2):
        trainer = {"dataloader_num_workers": workers}
        recipe = tiny_recipe("masked", prose, trainer=trainer, model={"dropout": 0.0}, training={"evaluate_every": 0})
        train(recipe, tmp_path / str(workers))
    one, other = weights_of(tmp_path / "0"), weights_of(tmp_path / "2")
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_a_batch_with_nothing_masked_is_no_divergence(prose, tmp_path):
    recipe = tiny_recipe(
        "masked", prose, data={"masked": 0.01, "length": 8}, training={"steps": 6, "batch_size": 1, "evaluate_every": 0}
    )
    losses = [row["loss"] for row in train(recipe, tmp_path / "run").log if "loss" in row]
    assert 0.0 in losses


def test_a_penalty_and_recomputed_activations_go_together(prose, tmp_path):
    def run(checkpointing):
        recipe = tiny_recipe(
            "causal", prose, regularizers=["activation_penalty(strength=100.0)"], model={"dropout": 0.0},
            training={"gradient_checkpointing": checkpointing, "micro_batch": 4, "evaluate_every": 0},
        )  # fmt: skip
        return [row["loss"] for row in train(recipe, tmp_path / str(checkpointing)).log if "loss" in row]

    assert run(True) == pytest.approx(run(False), rel=1e-5)


def test_classes_are_told_apart_by_name_whatever_their_numbers(tmp_path):
    from datasets import ClassLabel, Dataset, Features, Value

    rows = {"text": ["a", "b", "c"] * 20, "second": ["x", "y", "z"] * 20}
    names = ["yes", "maybe", "no"]
    Dataset.from_dict(rows | {"label": names * 20}).to_csv(tmp_path / "train.csv", index=False)
    numbered = Features({"text": Value("string"), "second": Value("string"), "label": ClassLabel(names=names)})
    Dataset.from_dict(rows | {"label": [0, 1, 2] * 20}, features=numbered).to_parquet(tmp_path / "other.parquet")
    columns = {"text": "text", "second": "second", "label": "label"}
    recipe = tiny_recipe(
        "masked", "unused", data={
            "train": {"path": str(tmp_path / "train.csv"), **columns},
            "validation": {"path": str(tmp_path / "other.parquet"), **columns},
        },
    ).model_copy(update={"task": "pairs"})  # fmt: skip
    data = training_data(recipe, tmp_path / "run")
    train_labels = [data.classes[row["labels"]] for row in data.rows.take(range(6), None)]
    asked_labels = [data.classes[row["labels"]] for row in data.validation.take(range(6), None)]
    assert train_labels == asked_labels == names * 2


def test_a_model_that_ended_in_infinity_still_has_a_report(prose, tmp_path):
    recipe = tiny_recipe(
        "causal", prose, optimizer={"learning_rate": 30.0}, schedule={"shape": "constant", "warmup_steps": 0},
        training={"steps": 6, "explosion": 1e9, "evaluate_every": 0},
    )  # fmt: skip
    report = train(recipe, tmp_path / "run")
    assert TrainReport.read(tmp_path / "run" / "figures.json") == report
    assert report.validation.perplexity is None
    assert report.sentences()
