"""Inspection finds planted outliers and names them, and says so when there are none."""

from __future__ import annotations

import json
import shlex

import pytest
import torch

import quietformer as qf
from quietformer.analysis.interventions import intervene
from quietformer.analysis.outliers import TokenNames
from quietformer.config.quantization import QuantRule, QuantSpec
from quietformer.quant.calibration import plan_quantization
from quietformer.results.inspect import Place
from tests.attention.test_inject import bloom, gpt_oss
from tests.tiny_models import VARIANTS, build, inputs, logits

ALL = ("bert", "opt", "vit", "llama", "gpt2")


def ffn_down(model):
    return model.bert.encoder.layer[1].output.dense


def plant(model, dimension=5, token=7, size=300.0):
    """Make the FFN of layer 1 shout in one dimension, whenever it sees one token."""
    with torch.no_grad():
        embedding = model.bert.embeddings.word_embeddings.weight
        embedding[:, 3] = 0.0
        embedding[token, 3] = 30.0

    def shout(_, args, output):
        loud = (model.last_tokens == token)[..., None].float()
        mark = torch.zeros(output.shape[-1])
        mark[dimension] = size
        return output + loud * mark

    ffn_down(model).register_forward_hook(shout)
    model.register_forward_pre_hook(lambda m, a, k: setattr(m, "last_tokens", k["input_ids"]), with_kwargs=True)


def batches(count=24, length=40):
    tokens = torch.randint(10, 99, (count, length), generator=torch.Generator().manual_seed(0))
    tokens[:, 0] = 7
    return [
        {"input_ids": tokens[i : i + 5], "attention_mask": torch.ones_like(tokens[i : i + 5])}
        for i in range(0, count, 5)
    ]


def test_planted_outliers_are_found_by_layer_dimension_position_and_token():
    model = build("bert")
    plant(model)
    report = qf.inspect_model(model, batches(), names=TokenNames(lambda token: f"t{token}"))
    row = next(row for row in report.outliers if row.site == "ffn_output" and row.layer == 1)
    assert row.few_dimensions == [5]
    assert row.tokens[0].token == "t7"
    assert row.positions[0] == 24
    assert sum(row.positions[1:]) < 24
    assert report.verdict.severity == "broken"
    assert report.verdict.ranked[0] in (Place(site="ffn_output", layer=1), Place(site="ffn_residual", layer=1))
    assert "dimension 5" in report.verdict.claims[0]
    assert "layer 1" in report.verdict.claims[0]
    json.dumps(report.model_dump(), allow_nan=False)


def test_what_needs_no_training_is_advised_first_and_every_command_can_be_typed():
    model = build("bert")
    plant(model)
    report = qf.inspect_model(model, batches(), name="my model")
    steps = report.verdict.next_steps
    commands = [shlex.split(step.partition("quietformer ")[2].removesuffix(".")) for step in steps[:4]]
    assert [command[:2] for command in commands] == [
        [verb, "my model"] for verb in ("export", "retrofit", "quantize", "quantize")
    ]
    kept = QuantSpec(rules=tuple(map(QuantRule.parse, commands[3][3::2])))
    plan = plan_quantization(model, kept, batches()[0]).info()
    grids = {site.short: site.grid for site in plan.sites if site.short.endswith(".ffn_output")}
    assert grids == {"0.ffn_output": "u16", "1.ffn_output": "u16"}


@pytest.mark.parametrize(("name", "everywhere"), [("llama", False), ("llama", True), ("bert", False)])
def test_a_prefix_is_advised_where_the_first_position_of_a_causal_model_has_the_outliers(name, everywhere):
    model = build(name)
    down = ffn_down(model) if name == "bert" else model.model.layers[1].mlp.down_proj

    def shout(_, args, output):
        marked = output.clone()
        marked[:, 0 :: 7 if everywhere else 1000, 5] += 300.0
        return marked

    down.register_forward_hook(shout)
    report = qf.inspect_model(model, batches(), name="m")
    advised = "quietformer quantize m --placement matmul --prefix auto" in report.verdict.next_steps[0]
    told = any("stand at the first position" in claim for claim in report.verdict.claims)
    assert advised == told == (name == "llama" and not everywhere)


def test_a_model_with_a_prefix_is_inspected_and_its_pictures_show_the_text():
    model = build("llama")
    qf.add_prefix_(model, (5, 9))
    report = qf.inspect_model(model, batches(2, 12))
    assert {picture.heads[0].P.columns for picture in report.pictures.attention} == {12}
    assert {len(one.tokens) for one in report.pictures.sequences} == {12}


def test_a_model_without_outliers_is_said_to_have_none():
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    fresh = BertModel(
        BertConfig(vocab_size=99, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)
    )
    report = qf.inspect_model(fresh, batches())
    assert report.verdict.severity == "quiet"
    assert "Quantize it as it is" in report.verdict.next_steps[0]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("variant", ["vanilla", "clipped-row", "gate-linear"])
def test_every_family_is_seen_and_left_as_it_was(name, variant):
    model, given = build(name), inputs(name)
    if variant != "vanilla":
        qf.apply_attention_(model, VARIANTS[variant])
    expected, keys = logits(model, given), list(model.state_dict())
    implementation = model.config._attn_implementation
    report = qf.inspect_model(model, [given])
    sites = {row.site for row in report.sites}
    assert {
        "attention_output",
        "ffn_output",
        "attention_residual",
        "ffn_residual",
        "attention_norm",
        "ffn_norm",
    } <= sites
    assert {"query", "key", "value", "scores", "probabilities", "context"} <= sites
    assert ("gate" in sites) == (variant == "gate-linear")
    assert len(report.heads) == 2
    assert report.headline.infinity_norm > 0
    assert torch.equal(logits(model, given), expected)
    assert list(model.state_dict()) == keys
    assert model.config._attn_implementation == implementation
    assert not any(module._forward_hooks for module in model.modules() if variant == "vanilla")


def test_sites_are_the_tensors_they_are_named_after():
    model, given = build("bert"), inputs("bert")
    report = qf.inspect_model(model, [given])
    with torch.no_grad():
        hidden = model.bert(**given, output_hidden_states=True).hidden_states
    for layer in range(2):
        x = hidden[layer + 1].double()
        row = report.tensor("ffn_norm", layer)
        assert row.infinity_norm == pytest.approx(float(x.flatten(1).abs().amax(1).mean()), rel=1e-5)
    model, given = build("opt"), inputs("opt")
    report = qf.inspect_model(model, [given])
    with torch.no_grad():
        hidden = model.model(**given, output_hidden_states=True).hidden_states
    row = report.tensor("ffn_residual", 0)
    assert row.infinity_norm == pytest.approx(float(hidden[1].flatten(1).abs().amax(1).mean()), rel=1e-5)


def test_a_dimension_that_is_always_large_is_not_taken_for_ordinary():
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    model = BertModel(BertConfig(vocab_size=99, **sizes))
    with torch.no_grad():
        model.encoder.layer[0].output.dense.bias[7] = 500.0
    report = qf.inspect_model(model, batches())
    assert report.verdict.severity == "broken"
    assert "dimension 7" in report.verdict.claims[0]


def test_tokens_cannot_steer_a_terminal():
    model = build("bert")
    plant(model)
    report = qf.inspect_model(model, batches(), names=TokenNames(lambda token: f"\x1b]0;owned\x07\x1b[2J{token}|\n"))
    text = json.dumps(report.verdict.model_dump(), ensure_ascii=False)
    assert "\x1b" not in text
    assert "\\x1b" in text


def test_head_measures_know_zeros_gates_and_idle_heads():
    model, given = build("bert"), inputs("bert", padded=True)
    qf.apply_attention_(
        model,
        qf.AttentionSpec(normalizer=qf.ClippedSoftmax(gamma=-1.0), gate=qf.LinearGate(pi_init=0.25, weight_std=0.0)),
    )
    with torch.no_grad():
        weights = model(**given, output_attentions=True).attentions[0]
    heads = qf.inspect_model(model, [given]).heads[0]
    real = given["attention_mask"].bool()
    zeros, rows = [], []
    for b in range(2):
        kept = weights[b][:, real[b]][:, :, real[b]]
        zeros.append((kept == 0).float().mean((1, 2)))
        rows.append((kept == 0).all(-1).float().mean(-1))
    assert heads.zeros == pytest.approx(torch.stack(zeros).mean(0).tolist(), abs=1e-6)
    assert heads.zero_rows == pytest.approx(torch.stack(rows).mean(0).tolist(), abs=1e-6)
    assert heads.gate == pytest.approx([0.25] * 4, abs=1e-6)


def test_causal_zeros_are_not_counted_as_clipped():
    heads = qf.inspect_model(build("opt"), [inputs("opt")]).heads[0]
    assert max(heads.zeros) == 0.0


def test_interventions_measure_what_outliers_carry():
    model = build("bert")
    plant(model)
    report = qf.inspect_model(model, batches())
    rows = {row.what: row for row in intervene(model, batches()[:2], report, mask_token=4)}
    assert rows["outlier dimensions set to zero"].measure == "loss per masked token"
    moved = {what: abs(row.after - row.before) for what, row in rows.items()}
    assert moved["outlier dimensions set to zero"] > moved["as many other dimensions set to zero"]
    assert not any(core for core in qf.attention_cores(model))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (
            lambda m: torch.nn.init.constant_(m.bert.encoder.layer[0].output.dense.bias, float("nan")),
            "output.dense.bias holds NaN",
        ),
        (lambda m: torch.nn.init.constant_(m.bert.encoder.layer[0].intermediate.dense.weight, 3e38), "NaN or infinity"),
    ],
)
def test_broken_models_are_named(harm, message):
    model = build("bert")
    harm(model)
    with pytest.raises(qf.QuietformerError, match=message):
        qf.inspect_model(model, [inputs("bert")])
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("name", ["bloom", "falcon", "gptj", "gpt_oss"])
def test_models_that_take_no_other_attention_are_inspected_all_the_same(name):
    model = {"bloom": bloom, "falcon": falcon, "gptj": gptj, "gpt_oss": gpt_oss}[name]().eval()
    tokens = torch.randint(3, 50, (4, 20), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    report = qf.inspect_model(model, [batch])
    assert report.heads == []
    assert not report.model.attention_seen
    assert any("heads were not looked into" in claim for claim in report.verdict.claims)
    sites = {row.site for row in report.sites}
    assert {"attention_output", "ffn_output"} <= sites
    assert sites & {"ffn_residual", "block_output"}


def falcon():
    from transformers import FalconConfig, FalconForCausalLM

    return FalconForCausalLM(FalconConfig(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4))


def gptj():
    from transformers import GPTJConfig, GPTJForCausalLM

    return GPTJForCausalLM(GPTJConfig(vocab_size=50, n_embd=32, n_layer=2, n_head=4, rotary_dim=4, n_positions=64))


def test_no_data_and_no_blocks_are_named():
    with pytest.raises(qf.QuietformerError, match="no sequences"):
        qf.inspect_model(build("bert"), [])
    with pytest.raises(qf.QuietformerError, match="not a transformers model"):
        qf.inspect_model(torch.nn.Linear(2, 2), [])


def test_one_layer_is_enough():
    from transformers import BertConfig, BertModel

    model = BertModel(
        BertConfig(vocab_size=99, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    )
    assert qf.inspect_model(model, batches()).model.layers == 1
