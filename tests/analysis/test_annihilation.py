"""Annihilated tensors: those that are one are named, with what helps them, and healthy ones are not."""

from __future__ import annotations

import pytest
import torch

import quietformer as qf
from quietformer.analysis.annihilation import annihilated_tensors, find_annihilated
from quietformer.analysis.verdict import with_annihilated
from quietformer.config.recorded_changes import changes_of
from quietformer.quant.insertion import quantizers
from quietformer.quant.sensitivity import noise_by_tensor
from quietformer.results.annihilation import LISTED, annihilated_tables, annihilated_words
from quietformer.results.inspect import Verdict
from tests.tiny_models import build, inputs


def text():
    """Sequences of forty tokens: of fewer, the first token alone would be too large a share of the values."""
    return {"input_ids": torch.randint(3, 99, (2, 40), generator=torch.Generator().manual_seed(3))}


GATED = "model.layers.1.mlp.down_proj:input"


def gated(factor=1000.0):
    """A gated FFN whose gate makes the first token of every sequence this much larger than all others."""
    model = build("llama")

    def open_wide(module, args, output):
        return torch.cat([output[:, :1] * factor, output[:, 1:]], 1)

    model.model.layers[1].mlp.act_fn.register_forward_hook(open_wide)
    return model


def one_channel(value=100_000.0):
    """An FFN in which one hidden channel dwarfs all others, on every token."""
    model = build("opt")
    with torch.no_grad():
        model.model.decoder.layers[0].fc1.bias[3] = value
    return model


def test_a_token_that_dwarfs_the_others_annihilates_them_and_scales_per_token_help():
    (found,) = find_annihilated(gated(), [text()])
    assert found.site == GATED
    assert found.zeroed >= 0.95
    assert found.token_spread > 500
    remedies = {remedy.name: remedy for remedy in found.remedies}
    assert remedies["per token"].zeroed < 0.2
    assert remedies["smoothing"].zeroed > 0.9  # every channel of the large token is large
    assert found.advice == "--granularity token"


def test_the_shares_are_those_of_a_count_by_hand():
    model, batch = gated(), text()
    (found,) = find_annihilated(model, [batch])
    seen = []
    handle = model.model.layers[1].mlp.down_proj.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    with torch.no_grad():
        model(**batch)
    handle.remove()
    rows = seen[0].double().flatten(0, 1)
    step = (rows.max().clamp(min=0) - rows.min().clamp(max=0)) / 255
    zero = (rows / step).round() == 0
    assert found.zeroed == pytest.approx(float(zero[rows != 0].double().mean()), abs=1e-3)
    lost = (rows.square() * zero).sum(1) / rows.square().sum(1)
    assert found.lost_by_token == pytest.approx(float(lost.mean()), abs=1e-3)
    reach = rows.abs().amax(1)
    assert found.token_spread == pytest.approx(float(reach.max() / reach.median()), rel=1e-4)


def test_the_remedy_that_is_advised_helps():
    model, batch = gated(), text()
    plan = qf.quantize_(model, qf.QuantSpec(placement="matmul", granularity="token"), batch)
    qf.calibrate_(model, [batch])
    assert annihilated_tensors(model, noise_by_tensor(model, plan, [batch]).rows, [batch]) == []


def test_a_channel_that_dwarfs_the_others_annihilates_them_and_smoothing_helps():
    found = find_annihilated(one_channel(), [text()])
    assert [tensor.site for tensor in found] == ["model.decoder.layers.0.fc2:input"]
    remedies = {remedy.name: remedy for remedy in found[0].remedies}
    assert remedies["per token"].annihilated  # every token has that channel
    assert not remedies["smoothing"].annihilated
    assert found[0].lost_by_token < 0.5  # told by its channels only
    assert found[0].advice.startswith("smoothing")


def test_what_nothing_helps_is_kept():
    """The values of attention have neither smoothing nor scales per token."""
    model = build("llama")

    def far(module, args, output):
        output = output.clone()
        output[:, 0] *= 1000.0
        return output

    model.model.layers[0].self_attn.v_proj.register_forward_hook(far)
    found = {tensor.site: tensor for tensor in find_annihilated(model, [text()])}
    value = found["model.layers.0.self_attn:value"]
    assert value.remedies == []
    assert value.advice == "--keep '0.value'"


@pytest.mark.parametrize("name", ["bert", "opt", "llama", "gpt2", "vit"])
def test_healthy_models_have_none(name):
    model = build(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert find_annihilated(model, [inputs(name)]) == []
    assert not quantizers(model)
    assert changes_of(model).quantized is None
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_attention_that_looks_at_one_key_is_not_annihilated():
    """Nearly all probabilities are far below a step, and nothing is lost with them."""
    model = build("bert")
    with torch.no_grad():
        for layer in model.bert.encoder.layer:
            layer.attention.self.query.weight *= 12
            layer.attention.self.key.weight *= 12
    batch = text()
    plan = qf.quantize_(model, qf.QuantSpec(), batch)
    qf.calibrate_(model, [batch])
    rows = {row.short: row for row in noise_by_tensor(model, plan, [batch]).rows}
    assert rows["0.probabilities"].zeroed > 0.5
    assert rows["0.probabilities"].lost_by_token < 0.01
    assert annihilated_tensors(model, list(rows.values()), [batch]) == []


def test_a_quantized_model_is_judged_by_its_own_grids():
    model, batch = gated(), text()
    qf.quantize_(model, qf.QuantSpec(placement="linear"), batch)
    qf.calibrate_(model, [batch])
    assert [tensor.site for tensor in find_annihilated(model, [batch])] == [GATED]
    assert quantizers(model)


def test_a_model_whose_attention_cannot_be_replaced_is_not_judged(monkeypatch):
    from quietformer.analysis import recorder
    from quietformer.errors import UnsupportedModelError

    def refuse(model, spec):
        raise UnsupportedModelError("no")

    monkeypatch.setattr(recorder, "apply_attention_", refuse)
    assert find_annihilated(build("bert"), [inputs("bert")]) is None


def quiet():
    return Verdict(severity="quiet", sentence="No outliers.", claims=["a"], next_steps=["export it"], ranked=[])


def test_a_verdict_names_them_and_is_no_longer_quiet():
    found = find_annihilated(gated(), [text()])
    verdict = with_annihilated(quiet(), found)
    assert verdict.severity == "worrying"
    assert "1.ffn_output.input" in verdict.claims[0]
    assert "--granularity token" in verdict.next_steps[0]
    assert "export it" not in verdict.next_steps
    assert with_annihilated(quiet(), []) == quiet()


def test_the_terminal_shows_the_worst_five():
    (one,) = find_annihilated(gated(), [text()])
    many = [one.model_copy(update={"short": f"{layer}.ffn_output.input"}) for layer in range(LISTED + 3)]
    (table,) = annihilated_tables(many)
    assert [row[0] for row in table.rows] == [tensor.short for tensor in many[:LISTED]]
    (sentence,) = annihilated_words(many)
    assert str(len(many)) in sentence
    assert annihilated_tables([]) == annihilated_words(None) == []
