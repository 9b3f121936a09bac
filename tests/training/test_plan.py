"""Plans, against models that are really built and really run."""

from __future__ import annotations

import io
import json
import resource
import sys
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import quietformer as qf
from quietformer.cli.printing import print_report
from quietformer.config.recipe import Recipe
from quietformer.results.plan import PlanReport
from quietformer.training.footprint import autocast, example_inputs, fake_, trace
from quietformer.training.model_building import build_model
from quietformer.training.plan import DataShape, plan
from quietformer.training.speed import Speed, Timing

BERT = {"model_type": "bert", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 256,
        "vocab_size": 128}  # fmt: skip
GATED = {"gate": {"kind": "linear", "pi_init": 0.25}}
CLIPPED = {"normalizer": {"kind": "clipped_softmax", "alpha": 2.0}}


def recipe(*, attention=None, training=None, **fields):
    given = {
        "task": "masked",
        "model": {"config": BERT, "dropout": 0.1},
        "data": {"length": 32},
        "attention": attention or {},
        "training": {"steps": 10, "batch_size": 8} | (training or {}),
    }
    return Recipe(**(given | fields))


def really_saved(asked, batch):
    """Bytes that autograd keeps in a pass of the real model: by address, while nothing can be freed."""
    model = build_model(asked).train()
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def pack(tensor):
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor.untyped_storage())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), autocast(asked, "cpu"):
        model(**example_inputs(model, asked, batch)).loss.backward()
    return sum(storage.nbytes() for address, storage in kept.items() if address not in own)


def traced(asked, batch):
    with torch.device("meta"):
        model = build_model(asked)
    fake_(model)
    return trace(model, asked, batch)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("attention", [None, GATED, CLIPPED], ids=["vanilla", "gated", "clipped"])
def test_activations_are_those_of_a_real_pass(attention, precision):
    asked = recipe(attention=attention, training={"precision": precision})
    assert traced(asked, 4).saved == pytest.approx(really_saved(asked, 4), rel=0.02)


@pytest.mark.parametrize(("task", "config"), [
    ("causal", {"model_type": "opt", "hidden_size": 64, "ffn_dim": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
                "word_embed_proj_dim": 64, "vocab_size": 128}),
    ("causal", {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128}),
    ("pairs", BERT),
    ("images", {"model_type": "vit", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
                "num_attention_heads": 4, "image_size": 32, "patch_size": 8}),
], ids=["opt", "llama", "pairs", "vit"])  # fmt: skip
def test_other_families_and_tasks_are_traced_as_they_run(task, config):
    source = {"path": "x.csv", "second": "b"} if task == "pairs" else "embedded"
    asked = recipe(task=task, model={"config": config, "dropout": 0.0}, data={"length": 32, "train": source})
    assert traced(asked, 4).saved == pytest.approx(really_saved(asked, 4), rel=0.02)


@pytest.mark.parametrize("attention", [None, GATED], ids=["vanilla", "gated"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_operations_are_those_that_a_real_step_counts(attention, checkpointing):
    asked = recipe(attention=attention, model={"config": BERT, "dropout": 0.1})
    model = build_model(asked).train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    with FlopCounterMode(display=False) as counter:  # with dropout a CPU's attention is plain products, which it knows
        model(**example_inputs(model, asked, 4)).loss.backward()
    assert traced(asked, 4).flops(checkpointing) == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_fused_attention_is_counted_as_the_products_it_is_made_of():
    fused = traced(recipe(model={"config": BERT, "dropout": 0.0}), 4)
    plain = traced(recipe(model={"config": BERT, "dropout": 0.1}), 4)
    assert fused.forward == plain.forward
    assert fused.backward > plain.backward  # it computes the scores again
    assert fused.saved < plain.saved


def test_operations_follow_the_rule_of_six_for_each_parameter_and_token():
    # Where products dominate: wide, short, and an output layer that is tied to the embedding.
    asked = recipe(model={"config": BERT | {"hidden_size": 512, "intermediate_size": 2048}})
    found = plan(asked, measure=False)
    rule = 6 * found.model.parameters.total * found.work.units_per_step
    assert found.work.flops_per_step == pytest.approx(rule, rel=0.05)
    assert found.work.flops == 10 * found.work.flops_per_step


@pytest.mark.parametrize("attention", [None, GATED], ids=["vanilla", "gated"])
def test_parameters_are_the_real_models_part_by_part(attention):
    asked = recipe(attention=attention)
    model = build_model(asked)
    parts = plan(asked, measure=False).model.parameters
    total = sum(p.numel() for p in model.parameters())
    quiet = sum(p.numel() for name, p in model.named_parameters() if ".quiet." in name)
    assert parts.total == total == sum(value for name, value in parts if name != "total")
    assert parts.added == quiet
    assert parts.embeddings == sum(p.numel() for p in model.bert.embeddings.parameters())
    assert parts.blocks == sum(p.numel() for p in model.bert.encoder.parameters()) - quiet


def test_checkpointing_keeps_less_and_works_more():
    plain, checkpointed = (plan(recipe(training={"gradient_checkpointing": on}), measure=False) for on in (False, True))
    assert checkpointed.memory.activations < 0.6 * plain.memory.activations
    ratio = checkpointed.work.flops_per_step / plain.work.flops_per_step
    assert 1.2 < ratio < 4 / 3


def test_memory_at_a_micro_batch_is_that_of_a_pass_of_it():
    asked = recipe(training={"batch_size": 24, "micro_batch": 6, "precision": "bf16"})
    found = plan(asked, measure=False)
    assert (found.batch.micro_batch, found.batch.accumulation) == (6, 4)
    assert found.memory.activations == pytest.approx(really_saved(asked, 6), rel=0.02)
    parameters = found.model.parameters.total
    assert found.memory.gradients == 4 * parameters
    assert found.memory.optimizer == 8 * parameters


def test_optimizer_states_are_what_adamw_really_keeps():
    model = build_model(recipe())
    optimizer = torch.optim.AdamW(model.parameters())
    model(**example_inputs(model, recipe(), 1)).loss.backward()
    optimizer.step()
    kept = sum(t.nbytes for state in optimizer.state.values() for t in state.values() if t.dim())
    used = sum(p.nbytes for p in model.parameters() if p.grad is None)  # BERT's pooler, if any
    assert plan(recipe(), measure=False).memory.optimizer == kept + 2 * used


def test_devices_share_the_batch_and_with_fsdp_the_weights():
    one = plan(recipe(), measure=False)
    four = plan(recipe(), devices=4, measure=False)
    sharded = plan(recipe(trainer={"fsdp": "full_shard"}), devices=4, measure=False)
    assert four.batch.micro_batch == 2
    assert four.work == one.work
    assert four.memory.weights == one.memory.weights
    assert sharded.memory.gradients == one.memory.gradients // 4
    assert sharded.memory.optimizer == one.memory.optimizer // 4
    assert sharded.memory.weights < 0.3 * one.memory.weights
    with pytest.raises(qf.QuietformerError, match="does not divide among 3"):
        plan(recipe(), devices=3, measure=False)


def test_epochs_become_steps_once_the_data_is_counted():
    asked = recipe(training={"steps": 0, "epochs": 2.0})
    assert plan(asked, data=DataShape(examples=40), measure=False).work.steps == 10
    unknown = plan(asked, measure=False)
    assert unknown.work.steps is None
    assert any("epochs" in note for note in unknown.notes)


def test_time_of_the_whole_comes_from_layer_and_rest_by_difference():
    # A layer takes 3 s and 30 operations, the rest 2 s and 5.
    speed = Speed(1, "fp32", Timing(5.0, 0.1, 35, 100), Timing(8.0, 0.2, 65, 200))
    assert speed.pass_seconds(5 + 24 * 30) == pytest.approx(2 + 24 * 3)
    assert speed.update_seconds(2400) == pytest.approx(2.4)


def test_noise_cannot_make_a_layer_free_or_the_whole_run_endless():
    share = 30 / 65  # of the operations that a layer does in the copy with two
    for one in (1.0, 7.99, 9.0):
        speed = Speed(1, "fp32", Timing(one, 0.1, 35, 100), Timing(8.0, 0.2, 65, 200))
        assert 8 * share / 2 <= speed.layer_seconds <= 4.0


def test_a_measured_plan_estimates_time_and_prints_and_writes_itself(monkeypatch):
    seen = []
    progress = SimpleNamespace(step=lambda what, done=0, total=0: seen.append(what))
    found = plan(recipe(), progress=progress)
    time = found.time
    assert 0 < time.seconds_per_step * 10 == pytest.approx(time.seconds)
    assert time.measured_micro_batch == 8
    assert any("one" in what or "1" in what for what in seen)
    assert PlanReport.from_fields(json.loads(found.to_json())) == found
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    print_report(found)
    text = out.getvalue()
    assert "estimate for this machine" in text
    assert f"{found.work.steps} steps" in text


def test_opt_of_1_3_billion_parameters_is_planned_in_little_memory():
    config = {"model_type": "opt", "hidden_size": 2048, "word_embed_proj_dim": 2048, "ffn_dim": 8192, "vocab_size": 50272,
              "num_hidden_layers": 24, "num_attention_heads": 32, "max_position_embeddings": 2048}  # fmt: skip
    asked = recipe(
        task="causal",
        model={"config": config},
        data={"length": 512},
        tokenizer={"pretrained": "facebook/opt-1.3b"},  # never fetched
        training={"precision": "fp16", "micro_batch": 1},
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = plan(asked, measure=False)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    # Embeddings of tokens and positions (two more than the length), 24 blocks, the last norm.
    block = 4 * (2048 * 2048 + 2048) + 2 * 2048 * 8192 + 8192 + 2048 + 4 * 2048
    parameters = 50272 * 2048 + 2050 * 2048 + 24 * block + 2 * 2048
    assert found.model.parameters.total == parameters
    assert grown < 0.1 * 4 * parameters
    assert found.work.flops_per_step == pytest.approx(6 * parameters * found.work.units_per_step, rel=0.1)
