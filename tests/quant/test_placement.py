"""What is quantized: the reference's counts, every family's tensors, rules, and a model that is otherwise untouched."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, OPTConfig, OPTForCausalLM
from transformers.pytorch_utils import Conv1D

import quietformer as qf
from quietformer.attention.core import plain_attention
from quietformer.config.quantization import QuantRule
from quietformer.errors import QuietformerError, SpecError
from quietformer.quant.affine import fake_quantize
from quietformer.quant.calibration import dequantize_, plan_quantization, set_mode_
from quietformer.quant.insertion import quantizers
from tests.tiny_models import CAUSAL, PAPER, VARIANTS, build, inputs, logits

FAMILIES = sorted({*PAPER, *CAUSAL})


def quantized(name, spec=None, **fields):
    model = build(name)
    plan = qf.quantize_(model, spec or qf.QuantSpec(**fields), inputs(name))
    qf.calibrate_(model, [inputs(name)])
    return model, plan


def test_bert_base_has_the_reference_counts():
    model = BertForMaskedLM(
        BertConfig(hidden_size=24, intermediate_size=48)
    )  # 12 layers of 12 heads, narrow to be quick
    plan = plan_quantization(model, qf.QuantSpec(), inputs("bert"))
    assert (plan.count("weight"), plan.count("activation")) == (100, 159)


def test_opt_125m_has_the_reference_counts():
    model = OPTForCausalLM(OPTConfig(hidden_size=24, ffn_dim=48, word_embed_proj_dim=24))
    plan = plan_quantization(model, qf.QuantSpec(), inputs("opt"))
    assert (plan.count("weight"), plan.count("activation")) == (99, 158)


def test_each_layer_of_bert_and_opt_has_the_thirteen_activations_of_the_reference():
    for name in ("bert", "opt"):
        _, plan = quantized(name)
        shorts = {site.short.partition(".")[2] for site in plan.sites if site.short.startswith("1.")}
        activations = {short for short in shorts if not short.endswith(".weight")}
        assert activations == {
            "query", "key", "value", "scores", "probabilities", "context", "attention_output", "attention_residual",
            "attention_norm", "ffn_hidden", "ffn_output", "ffn_residual", "ffn_norm",
        }  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_every_projection_reads_values_on_a_grid(name):
    model, _ = quantized(name)
    base = model.base_model
    seen = []
    grids = {round(float(q.scale), 12) for site, q in quantizers(model).items() if not site.endswith(":weight")}

    def look(module, args, output):
        x = args[0].detach()
        # On a grid: divided by one of the model's scales it is whole numbers. Embeddings are on their weight's grid.
        scales = [*grids, *(float(q.scale) for site, q in quantizers(model).items() if site.endswith(":weight"))]
        seen.append(any(torch.allclose(x / s, (x / s).round(), atol=1e-3) for s in scales))

    for module in base.modules():
        if isinstance(module, (torch.nn.Linear, torch.nn.Conv2d, Conv1D)) and "quiet" not in type(module).__module__:
            module.register_forward_hook(look)
    logits(model, inputs(name))
    assert seen
    assert all(seen)


@pytest.mark.parametrize("name", FAMILIES)
def test_quantizers_that_let_pass_change_nothing_and_come_out_without_a_trace(name):
    model, given = build(name), inputs(name, padded=name != "vit")
    qf.apply_attention_(model, qf.AttentionSpec())
    with plain_attention():  # quantizers need the weights, so that is the way a quantized model goes
        before, keys = logits(model, given), set(model.state_dict())
    qf.quantize_(model, qf.QuantSpec(), given)
    assert torch.equal(logits(model, given), before)
    qf.calibrate_(model, [given])
    assert not torch.equal(logits(model, given), before)
    dequantize_(model)
    with plain_attention():
        assert torch.equal(logits(model, given), before)
    assert set(model.state_dict()) == keys
    assert not any(hasattr(m, "weight") and "weight" in vars(m) for m in model.modules())


@pytest.mark.parametrize("name", FAMILIES)
def test_sixteen_bits_are_nearly_floating_point(name):
    model = build(name)
    expected = logits(model, inputs(name))
    qf.quantize_(model, qf.QuantSpec(weight_bits=16, activation_bits=16), inputs(name))
    qf.calibrate_(model, [inputs(name)])
    assert torch.allclose(logits(model, inputs(name)), expected, atol=2e-3 * float(expected.abs().max()))


def test_one_quantized_layer_equals_its_formula():
    """BERT's last FFN, by hand in torch, from the input its first projection really got."""
    model, _ = quantized("bert")
    placed = quantizers(model)
    layer, name = model.bert.encoder.layer[1], "bert.encoder.layer.1"
    seen = {}
    layer.intermediate.register_forward_pre_hook(lambda m, a: seen.update(x=a[0]))
    layer.register_forward_hook(lambda m, a, o: seen.update(y=o[0] if isinstance(o, tuple) else o))
    logits(model, inputs("bert"))

    def grid(site, x):
        q = placed[f"{name}.{site}"]
        return fake_quantize(x, q.scale, q.zero_point, bits=8)

    linear = torch.nn.functional.linear
    with torch.no_grad():
        up, down, norm = layer.intermediate.dense, layer.output.dense, layer.output.LayerNorm
        hidden = torch.nn.functional.gelu(linear(seen["x"], grid("intermediate.dense:weight", up.weight), up.bias))
        hidden = grid("intermediate.intermediate_act_fn:output", hidden)
        out = grid("output.dense:output", linear(hidden, grid("output.dense:weight", down.weight), down.bias))
        total = grid("output:add_0", out + seen["x"])
        scale = grid("output.LayerNorm:weight", norm.weight)
        normed = torch.nn.functional.layer_norm(total, (32,), scale, norm.bias, norm.eps)
        assert torch.equal(grid("output.LayerNorm:output", normed), seen["y"])


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_every_attention_variant_is_quantized_after_its_clip_and_its_gate(variant):
    model = build("bert")
    torch.manual_seed(0)
    qf.apply_attention_(model, VARIANTS[variant])
    plan = qf.quantize_(model, qf.QuantSpec(), inputs("bert"))
    qf.calibrate_(model, [inputs("bert")])
    gated = VARIANTS[variant].gate is not None
    assert any("gate" in item.name for item in plan.left) == gated
    seen = {}
    for _, core in qf.attention_cores(model):
        core.taps["context"].register_forward_hook(lambda m, a, o, core=core: seen.update({core: (a[0], o)}))
    logits(model, inputs("bert"))
    for core, (before, after) in seen.items():
        q = core.taps["context"]
        assert torch.equal(after, fake_quantize(before, q.scale, q.zero_point, bits=8))
    with_gate = plan_quantization(_attended(variant), qf.QuantSpec(gate=True), inputs("bert"))
    assert with_gate.count("activation") - plan.count("activation") == (2 if gated else 0)


def _attended(variant):
    model = build("bert")
    qf.apply_attention_(model, VARIANTS[variant])
    return model


def test_a_tied_head_keeps_the_weight_in_floating_point():
    model, _ = quantized("opt")
    assert model.lm_head.weight is model.model.decoder.embed_tokens.weight
    seen = {}
    model.lm_head.register_forward_hook(lambda m, a, o: seen.update(x=a[0], y=o))
    logits(model, inputs("opt"))
    assert torch.equal(seen["y"], torch.nn.functional.linear(seen["x"], model.lm_head.weight))


def test_the_head_is_quantized_when_asked_for():
    _, plain = quantized("bert")
    _, headed = quantized("bert", head=True)
    new = {site.name for site in headed.sites} - {site.name for site in plain.sites}
    assert new
    assert all(name.startswith("cls.") for name in new)


def test_rules_by_short_name_give_other_bits_or_none_and_the_last_one_counts():
    rules = (QuantRule.parse("*.ffn_output=16"), QuantRule.parse("*.scores"), QuantRule.parse("0.ffn_output=4"))
    _, plan = quantized("bert", rules=rules)
    bits = {site.short: site.grid.bits for site in plan.sites}
    assert bits["1.ffn_output"] == 16
    assert bits["0.ffn_output"] == 4
    assert bits["0.ffn_hidden"] == 8
    assert "0.scores" not in bits
    why = {item.name: item.why for item in plan.left}
    assert why["bert.encoder.layer.0.attention.self:scores"] == "rule '*.scores'"


def test_a_rule_that_matches_nothing_is_an_error():
    with pytest.raises(QuietformerError, match=r"rule '\*\.ffn_outptu=16' matches no tensor"):
        quantized("bert", rules=(QuantRule.parse("*.ffn_outptu=16"),))
    with pytest.raises(SpecError, match="cannot read rule"):
        QuantRule.parse("*.ffn_output=many")


def test_an_error_while_planning_leaves_the_model_as_it_was():
    model = build("bert")
    before, keys = logits(model, inputs("bert")), set(model.state_dict())
    with pytest.raises(QuietformerError):
        qf.quantize_(model, qf.QuantSpec(rules=("nothing",)), inputs("bert"))
    assert set(model.state_dict()) == keys
    assert torch.equal(logits(model, inputs("bert")), before)
    assert not list(qf.attention_cores(model))


def test_attention_cannot_be_changed_under_quantizers():
    model, _ = quantized("bert")
    with pytest.raises(QuietformerError, match="is quantized"):
        qf.apply_attention_(model, qf.AttentionSpec(gate=qf.LinearGate()))
    with pytest.raises(QuietformerError, match="is quantized"):
        qf.remove_attention_(model)
    with pytest.raises(QuietformerError, match="quantized already"):
        qf.quantize_(model, qf.QuantSpec(), inputs("bert"))


def test_per_channel_weights_have_a_scale_for_each_output():
    model, plan = quantized("gpt2", per_channel=True)
    placed = quantizers(model)
    c_fc = "transformer.h.0.mlp.c_fc:weight"  # GPT-2 stores (in, out)
    assert placed[c_fc].scale.shape == (model.transformer.h[0].mlp.c_fc.weight.shape[1],)
    weight = model.transformer.h[0].mlp.c_fc.weight
    assert torch.allclose(placed[c_fc].scale, weight.abs().amax(0) / 127, rtol=1e-6)
    assert placed["transformer.wte:weight"].scale.shape == (32,)
    assert all(site.grid.axis is None for site in plan.sites if site.role == "activation")


def test_gradients_pass_straight_through_to_weights():
    model, _ = quantized("bert")
    model.train()
    model(**inputs("bert")).logits.square().mean().backward()
    for site in quantizers(model):
        if site.endswith(":weight"):
            weight = model.get_submodule(site.removesuffix(":weight")).weight
            assert weight.grad is not None
            assert bool(weight.grad.isfinite().all())


def test_weights_on_their_grid_follow_the_weight():
    """The cache must not outlive an optimizer step or a new calibration."""
    model, _ = quantized("bert")
    first = logits(model, inputs("bert"))
    with torch.no_grad():
        model.bert.encoder.layer[0].output.dense.weight.mul_(1.5)
    second = logits(model, inputs("bert"))
    assert not torch.equal(first, second)
    qf.calibrate_(model, [inputs("bert")])
    assert not torch.equal(logits(model, inputs("bert")), second)


def test_a_copy_of_a_quantized_model_computes_the_same_and_is_its_own():
    model, _ = quantized("bert")
    twin = copy.deepcopy(model)
    before = logits(model, inputs("bert"))
    assert torch.equal(logits(twin, inputs("bert")), before)
    set_mode_(twin, "pass")
    assert torch.equal(logits(model, inputs("bert")), before)


def test_sums_inside_a_child_are_not_counted_as_the_parents():
    """Llama's RMSNorm adds eps and multiplies inside; the block's two residual sums keep their names."""
    _, plan = quantized("llama")
    sums = [site.name for site in plan.sites if ":add_" in site.name]
    assert sums == [f"model.layers.{layer}:add_{index}" for layer in range(2) for index in range(2)]


def test_an_exception_in_the_middle_of_a_pass_leaves_nothing_behind():
    model, _ = quantized("bert")
    before = logits(model, inputs("bert"))
    handle = model.bert.encoder.layer[1].output.dense.register_forward_hook(
        lambda *_: (_ for _ in ()).throw(KeyError("x"))
    )
    with pytest.raises(KeyError):
        logits(model, inputs("bert"))
    handle.remove()
    assert torch.equal(logits(model, inputs("bert")), before)
    assert torch.tensor(1.0) + torch.tensor(2.0) == 3.0
    from quietformer.quant.insertion import _scopes

    assert not _scopes.running
    assert _scopes.mode is None


@pytest.mark.parametrize(
    "depth", ["embeddings.LayerNorm", "encoder.layer.0.attention.output", "encoder.layer.1.output.dense"]
)
def test_an_interrupt_in_the_middle_of_a_pass_quantizes_nothing_afterwards(depth):
    """torch calls no hooks after a KeyboardInterrupt."""
    model, _ = quantized("bert")
    before = logits(model, inputs("bert"))

    def interrupt(*_):
        raise KeyboardInterrupt

    module = model.bert.get_submodule(depth)
    forward = module.forward
    module.forward = interrupt
    with pytest.raises(KeyboardInterrupt):
        logits(model, inputs("bert"))
    module.forward = forward
    a, b = torch.full((4, 9, 32), 1000.25), torch.full((4, 9, 32), 0.5)
    assert torch.equal(a + b, torch.full((4, 9, 32), 1000.75))  # nobody's sum but the user's
    assert torch.equal(logits(model, inputs("bert")), before)
    assert not any("weight" in vars(module) for module in model.modules())


def test_weights_edited_through_data_are_seen():
    model, _ = quantized("bert")
    first = logits(model, inputs("bert"))
    weight = model.bert.encoder.layer[0].output.dense.weight
    weight.data += 0.3 * torch.ones_like(weight)  # as merging an adapter does
    merged = logits(model, inputs("bert"))
    assert not torch.equal(merged, first)
    assert torch.equal(model(**inputs("bert")).logits, merged)  # with gradients nothing is cached
    with torch.inference_mode():
        assert torch.equal(model(**inputs("bert")).logits, merged)


def test_modes_of_parts_stay_as_they_were():
    model = build("bert").train()
    model.bert.embeddings.eval()
    qf.quantize_(model, qf.QuantSpec(), inputs("bert"))
    qf.calibrate_(model, [inputs("bert")])
    assert model.training
    assert not model.bert.embeddings.training
    assert not model.bert.embeddings.dropout.training
