"""Self-distillation: losses against their formulas, families, QAT, interruption, the best checkpoint kept."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import quietformer as qf
from quietformer.config.recipe import Recipe, TeacherRecipe
from quietformer.data.tokenizers import tokenizer_of
from quietformer.errors import QuietformerError, SpecError
from quietformer.models.open_any import open_model
from quietformer.quant.insertion import quantizers
from quietformer.training import trainer as trainer_module
from quietformer.training.best import BestWatch
from quietformer.training.checkpoints import whole_checkpoints
from quietformer.training.distillation_loss import distillation_loss, divergence, relative_difference
from quietformer.training.run import train
from quietformer.training.student import without_dropout_
from tests.training.pretrained import MODELS, UNITS, tiny_pretrained
from tests.training.recipes import write_prose

GATE = {"gate": {"kind": "linear", "pi_init": 0.5, "scale": 2.0, "weight_std": 0.01}}


def recipe_for(original, text, /, **changes):
    fields = {
        "name": "tiny", "task": "distill",
        "model": {"pretrained": str(original)},
        "attention": GATE,
        "data": {"train": str(text), "unit": "passages", "length": 24, "hold_out": 16, "limit": 10},
        "optimizer": {"learning_rate": 1e-3, "gate_factor": 10.0, "weight_decay": 0.0, "freeze_embeddings": True},
        "schedule": {"shape": "cosine", "warmup_steps": 2},
        "training": {"steps": 8, "batch_size": 4, "evaluate_every": 3, "save_every": 2, "log_every": 2, "outliers_every": 3},
        "qat": {"share": 0.5, "recalibrate_every": 2, "calibration": 8},
    }  # fmt: skip
    for section, values in changes.items():
        fields[section] = fields.get(section, {}) | values if isinstance(values, dict) else values
    return Recipe(**fields)


@pytest.fixture
def text(tmp_path):
    return write_prose(tmp_path / "text.txt")


def final_weights(run):
    return load_file(next(path for path in run.iterdir() if path.suffix == ".safetensors"))


# Losses


def test_differences_are_the_formulas_in_float64():
    x, y = torch.randn(2, 5, 7), torch.randn(2, 5, 7) * 3 + 1
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    real = mask.bool().numpy()
    a, b = x.double().numpy()[real], y.double().numpy()[real]
    assert relative_difference(x, y, mask).item() == pytest.approx(((a - b) ** 2).mean() / b.var(), rel=1e-5)
    p = np.exp(b) / np.exp(b).sum(-1, keepdims=True)
    q = np.exp(a) / np.exp(a).sum(-1, keepdims=True)
    assert divergence(x, y, mask).item() == pytest.approx((p * np.log(p / q)).sum(-1).mean(), rel=1e-4)


def test_one_massive_value_is_neither_everything_nor_worth_keeping():
    y = torch.randn(2, 32, 64)
    y[:, 0, 7] = 20_000.0
    kept, healed = torch.randn_like(y), y.clone()
    kept[:, 0, 7], healed[:, 0, 7] = 20_000.0, 14.0
    assert relative_difference(healed, y, None) < 0.05 * relative_difference(kept, y, None)


@pytest.mark.parametrize("name", ["encoder", "llama", "masked"])
def test_a_copy_costs_nothing_and_padding_does_not_count(tmp_path, name):
    model = open_model(str(tiny_pretrained(tmp_path / "model", name)))
    task = {"encoder": "embedding", "llama": "causal", "masked": "masked"}[name]
    batch = {"input_ids": torch.randint(5, 200, (2, 9)), "attention_mask": torch.ones(2, 9, dtype=torch.long)}
    batch["attention_mask"][1, -3:] = 0
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.get_input_embeddings().weight.mul_(2.0)
    outputs = [m(**batch, output_hidden_states=True) for m in (model, copy.deepcopy(model), other)]
    assert distillation_loss(outputs[0], outputs[1], batch, TeacherRecipe(), task).item() == pytest.approx(
        0.0, abs=1e-6
    )
    loss = distillation_loss(outputs[2], outputs[0], batch, TeacherRecipe(), task)
    assert loss.item() > 1e-3
    padded = {name: value.clone() for name, value in batch.items()}
    padded["input_ids"][1, -3:] = 7
    again = [m(**padded, output_hidden_states=True) for m in (other, model)]
    assert distillation_loss(*again, padded, TeacherRecipe(), task).item() == pytest.approx(loss.item(), rel=1e-4)


def test_with_nothing_to_compare_it_says_so(tmp_path, text):
    model = tiny_pretrained(tmp_path / "model")
    with pytest.raises(QuietformerError, match=r"teacher\.hidden"):
        train(recipe_for(model, text, teacher={"hidden": 0.0, "pooled": 0.0}), tmp_path / "run")


def test_a_causal_model_may_also_follow_its_own_objective(tmp_path):
    model = open_model(str(tiny_pretrained(tmp_path / "model", "llama")))
    batch = {"input_ids": torch.randint(5, 200, (2, 9))}
    output = model(**batch, output_hidden_states=True)
    weights = TeacherRecipe(hidden=0.0, pooled=0.0, logits=0.0, objective=1.0)
    theirs = model(**batch, labels=batch["input_ids"]).loss
    assert distillation_loss(output, output, batch, weights, "causal").item() == pytest.approx(theirs.item(), rel=1e-5)


def test_dropout_is_off_in_training_and_stays_in_the_config(tmp_path):
    model = open_model(str(tiny_pretrained(tmp_path / "model")))
    before = model.config.hidden_dropout_prob
    without_dropout_(model)
    model.train()
    batch = {"input_ids": torch.randint(5, 200, (2, 9))}
    assert torch.equal(model(**batch).last_hidden_state, model(**batch).last_hidden_state)
    assert model.config.hidden_dropout_prob == before > 0


# Runs


@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_model_is_distilled_from_itself(tmp_path, text, name):
    model = tiny_pretrained(tmp_path / "model", name)
    source = "digits" if name == "vit" else str(text)
    data = {"train": source, "unit": UNITS.get(name, "sequences"), "limit": 100 if name == "vit" else 10}
    report = train(recipe_for(model, text, data=data, training={"steps": 4}), tmp_path / "run")
    original, healed = open_model(str(model)), qf.load(tmp_path / "run")
    assert type(healed) is type(original)
    assert not quantizers(healed)
    assert report.validation.model_fields_set == {"fp32", "int8"}
    assert healed.num_parameters() > original.num_parameters()
    after = dict(healed.named_parameters())
    frozen = {id(module.weight) for module in original.modules() if isinstance(module, nn.Embedding)}
    same = {key: torch.equal(old, after[key]) for key, old in original.named_parameters()}
    assert all(same[key] for key, old in original.named_parameters() if id(old) in frozen)
    assert not all(same.values())


def test_without_attention_of_ours_the_result_is_plain_transformers(tmp_path, text):
    model = tiny_pretrained(tmp_path / "model")
    train(recipe_for(model, text, attention={"gate": None}), tmp_path / "run")
    healed = open_model(str(tmp_path / "run"))
    assert not list(qf.attention_cores(healed))
    assert "quantization_config" not in healed.config.to_dict()


def test_interrupted_during_qat_it_ends_with_the_same_weights(tmp_path, text, monkeypatch):
    model = tiny_pretrained(tmp_path / "model")
    recipe = recipe_for(model, text, training={"steps": 10, "save_every": 1, "evaluate_every": 4})
    train(recipe, tmp_path / "whole")
    publish = trainer_module.publish

    class StopError(Exception):
        pass

    for step in (2, 5, 6, 8):  # before QAT, as it begins, between two calibrations, after an evaluation

        def stopping(run, name, step=step):
            publish(run, name)
            if name == f"checkpoint-{step}":
                raise StopError

        with monkeypatch.context() as patch:
            patch.setattr(trainer_module, "publish", stopping)
            with pytest.raises(StopError):
                train(recipe, tmp_path / "part")
    train(recipe, tmp_path / "part")
    whole, part = final_weights(tmp_path / "whole"), final_weights(tmp_path / "part")
    assert whole.keys() == part.keys()
    assert all(torch.equal(whole[key], part[key]) for key in whole)


def test_the_penalty_brings_outliers_down_and_the_model_stays_itself(tmp_path, text):
    model = tiny_pretrained(tmp_path / "model", outlier=80.0)
    changes = {
        "training": {"steps": 60, "batch_size": 8, "evaluate_every": 0, "save_every": 0},
        "regularizers": [{"kind": "activation_penalty", "strength": 0.1, "threshold": 8.0}],
        "optimizer": {"learning_rate": 3e-3},
    }
    train(recipe_for(model, text, **changes), tmp_path / "run")
    original, healed = open_model(str(model)), open_model(str(tmp_path / "run"))
    tokenizer = tokenizer_of(str(model))
    batch = tokenizer(["A sentence.", "Another one about names."], padding=True, return_tensors="pt")
    batch = {name: batch[name] for name in ("input_ids", "attention_mask")}
    reach = {}
    for name, one in (("before", original), ("after", healed)):
        seen = []
        handle = one.encoder.layer[0].output.dense.register_forward_hook(lambda m, i, o, seen=seen: seen.append(o))
        with torch.no_grad():
            states = one(**batch).last_hidden_state
        handle.remove()
        reach[name] = seen[0].abs().max().item(), states
    assert reach["before"][0] > 60
    assert reach["after"][0] < 0.5 * reach["before"][0]
    cosine = nn.functional.cosine_similarity(reach["before"][1].mean(1), reach["after"][1].mean(1), dim=-1)
    assert cosine.min() > 0.9


# The best


class Control:
    should_save = should_training_stop = False


class State:
    global_step = 0


@pytest.mark.parametrize(("better", "values"), [("higher", [0.5, 0.7, 0.6, 0.65]), ("lower", [9.0, 7.0, 8.0, 7.5])])
def test_the_best_evaluation_is_saved_and_patience_ends_the_run(better, values):
    watch, control, state = BestWatch("eval_int8", better, 2), Control(), State()
    saved = []
    for step, value in enumerate(values, start=1):
        state.global_step, control.should_save = step, False
        watch.on_evaluate(None, state, control, {"eval_int8": value})
        saved.append(control.should_save)
    assert saved == [True, True, False, False]
    assert (watch.step, watch.value) == (2, values[1])
    assert control.should_training_stop
    again = BestWatch(**watch.state()["args"])
    vars(again).update(watch.state()["attributes"])
    assert vars(again) == vars(watch)


def test_a_model_that_broke_is_never_the_best():
    watch, control, state = BestWatch("eval_int8", "higher", 0), Control(), State()
    watch.on_evaluate(None, state, control, {"eval_int8": float("nan")})
    assert watch.step is None
    assert not control.should_save


def test_the_best_checkpoint_is_what_the_folder_holds(tmp_path, text, monkeypatch):
    """The measure is made to fall after the second evaluation; the run stops early and goes back."""
    from quietformer.training.distillation_trainer import TeacherAgreement

    values = iter([0.5, 0.9, 0.6, 0.6, 0.6, 0.6])
    monkeypatch.setattr(TeacherAgreement, "__call__", lambda self, model: {"eval_fp32": 1.0, "eval_int8": next(values)})
    model = tiny_pretrained(tmp_path / "model")
    changes = {
        "training": {"steps": 12, "evaluate_every": 2, "save_every": 0, "patience": 2, "keep": 1},
        "qat": {"share": 0.0},
    }
    report = train(recipe_for(model, text, **changes), tmp_path / "run")
    assert report.best.step == 4
    assert report.steps == 8
    names = [path.name for path in whole_checkpoints(tmp_path / "run")]
    assert names[0] == "checkpoint-4"
    kept = open_model(str(tmp_path / "run" / "checkpoints" / "checkpoint-4")).state_dict()
    final = open_model(str(tmp_path / "run")).state_dict()
    assert all(torch.equal(kept[key], value) for key, value in final.items())


def test_killed_after_giving_up_it_trains_no_further(tmp_path, text, monkeypatch):
    from quietformer.training import run as run_module
    from quietformer.training.distillation_trainer import TeacherAgreement

    given = {0: 0.1, 2: 0.9, 4: 0.5, 6: 0.4, 8: 0.95, 10: 0.96}  # it would find better if it went on
    changes = {
        "training": {"steps": 10, "evaluate_every": 2, "save_every": 2, "patience": 2, "keep": 9},
        "qat": {"share": 0.0},
    }
    recipe = recipe_for(tiny_pretrained(tmp_path / "model"), text, **changes)
    step = {"now": 0}

    def quality(self, model):
        return {"eval_fp32": 1.0, "eval_int8": given[step["now"]]}

    log = trainer_module.QuietTrainer.training_step

    def counting(self, *args, **kwargs):
        step["now"] = self.state.global_step + 1
        return log(self, *args, **kwargs)

    monkeypatch.setattr(TeacherAgreement, "__call__", quality)
    monkeypatch.setattr(trainer_module.QuietTrainer, "training_step", counting)
    whole = train(recipe, tmp_path / "whole")
    assert (whole.best.step, whole.steps) == (2, 6)

    class StopError(Exception):
        pass

    def stopping(*args, **kwargs):
        raise StopError

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "write_final_model", stopping)
        with pytest.raises(StopError):
            train(recipe, tmp_path / "part")
    part = train(recipe, tmp_path / "part")
    assert (part.best, part.steps) == (whole.best, whole.steps)
    assert part.seconds > 0
    one, other = final_weights(tmp_path / "whole"), final_weights(tmp_path / "part")
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_a_run_begun_with_the_names_of_the_first_release_resumes(tmp_path, text, monkeypatch):
    recipe = recipe_for(tiny_pretrained(tmp_path / "model"), text, training={"steps": 4, "save_every": 2})
    train(recipe, tmp_path / "whole")

    class StopError(Exception):
        pass

    def stopping(run, name, publish=trainer_module.publish):
        publish(run, name)
        raise StopError

    with monkeypatch.context() as patch:
        patch.setattr(trainer_module, "publish", stopping)
        with pytest.raises(StopError):
            train(recipe, tmp_path / "part")
    written = tmp_path / "part" / "recipe.yaml"
    old = written.read_text().replace("task: distill", "task: imitate").replace("\nqat:", "\nrounding:")
    assert old != written.read_text()
    written.write_text(old)
    train(recipe, tmp_path / "part")
    one, other = final_weights(tmp_path / "whole"), final_weights(tmp_path / "part")
    assert all(torch.equal(one[key], other[key]) for key in one)


# Recipes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": {"pretrained": "", "config": {"model_type": "bert"}}}, "model.pretrained"),
        ({"task": "causal"}, "for task 'distill'"),
        ({"trainer": {"fsdp": "full_shard"}}, "sharded"),
        ({"data": {"streaming": True}}, "not streamed"),
        ({"qat": {"share": 1.5}}, "share"),
        ({"model": {"dropout": 0.1}}, "no dropout"),
    ],
)
def test_recipes_that_make_no_sense_are_refused(tmp_path, changes, words):
    with pytest.raises(SpecError, match=words):
        recipe_for("minilm", "text.txt", **changes)
