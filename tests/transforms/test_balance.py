"""Residual sums of post-norm models in other units: the same model bit for bit, its wide features no longer wide."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AutoModel,
    AutoModelForMaskedLM,
    BertConfig,
    BertLMHeadModel,
    BertModel,
    CanineConfig,
    CanineModel,
    DistilBertConfig,
    DistilBertForMaskedLM,
    EncoderDecoderModel,
    MPNetConfig,
    MPNetForMaskedLM,
    VisualBertConfig,
    VisualBertModel,
    XmodConfig,
    XmodModel,
)

import quietformer as qf
from quietformer.config.model_changes import ModelChanges
from quietformer.config.quantization import QuantSpec
from quietformer.config.recorded_changes import changes_of
from quietformer.errors import CheckpointError, QuietformerError, SpecError
from quietformer.quant.calibration import calibrate_, quantize_, set_mode_
from quietformer.quant.insertion import quantizers
from quietformer.transforms.balance import balance_
from quietformer.transforms.gained_modules import (
    GainedActivation,
    GainedLayerNorm,
    gain_,
    gained_activations,
    gained_norms,
)
from tests.tiny_models import build, inputs

WIDE = 5
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 99}


def widened(model, times=64.0):
    """One feature of every norm far wider than the others, as in real encoders, the weights reading it as before."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.weight.add_(0.3 * torch.randn(module.weight.shape, generator=generator))
                module.weight[WIDE] *= times
    return model.eval()


def bert():
    return widened(build("bert"))


@torch.no_grad()
def logits(model, batch=None):
    return model(**(batch or inputs("bert")))[0]


def other(kind, config, **fields):
    torch.manual_seed(0)
    sizes = {"vocab_size": 99, "max_position_embeddings": 64, **fields}
    return widened(kind(config(**sizes)))


def albert(passes, groups):
    sizes = SIZES | {"num_hidden_layers": passes, "num_hidden_groups": groups, "embedding_size": 16}
    return other(AlbertForMaskedLM, AlbertConfig, **sizes)


@pytest.mark.parametrize(
    ("model", "sums"),
    [
        (bert(), 4),
        (other(DistilBertForMaskedLM, DistilBertConfig, dim=32, n_layers=2, n_heads=4, hidden_dim=64), 4),
        (
            other(
                MPNetForMaskedLM, MPNetConfig, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
            ),
            4,
        ),
        # A shared layer has one pair of norms: what each pass hands on stays as it is, since the last is the output.
        (albert(passes=3, groups=1), 1),
        (albert(passes=4, groups=2), 2),
    ],
    ids=["bert", "distilbert", "mpnet", "albert", "albert-groups"],
)  # fmt: skip
def test_a_balanced_model_computes_the_same_to_the_last_bit(model, sums):
    batch = inputs("bert")
    if "distil" in type(model).__name__.lower():
        batch.pop("token_type_ids", None)
    before = logits(model, batch)
    assert balance_(model, [batch]) == sums
    assert torch.equal(logits(model, batch), before)
    gains = [module.quiet_gain for module in model.modules() if isinstance(module, GainedLayerNorm)]
    assert len(gains) == sums
    assert all(gain.max() > 4 for gain in gains)  # there was something to balance
    assert all(torch.equal(gain.log2(), gain.log2().round()) for gain in gains)


def ranges(model):
    """How far a sum reaches, in what its usual feature reaches."""
    found = []
    layer = model.bert.encoder.layer[1]
    handles = [
        module.register_forward_pre_hook(lambda m, args: found.append(args[0].abs().flatten(0, -2).amax(0)))
        for module in (layer.attention.output.LayerNorm, layer.output.LayerNorm, layer.intermediate.dense)
    ]
    logits(model)
    for handle in handles:
        handle.remove()
    return [float(wide.max() / wide.median()) for wide in found]


@settings(deadline=None, max_examples=10)
@given(st.sampled_from([0.25, 0.5, 0.75, 1.0]))
def test_alpha_says_how_much_of_the_width_goes(alpha):
    model = bert()
    before = ranges(model)
    balance_(model, [inputs("bert")], alpha=alpha)
    for was, now in zip(before, ranges(model), strict=True):
        # Up to the rounding of scales to powers of two, of the widest feature and of the median one.
        assert now <= 2 * was ** (1 - alpha) * 2**0.5
    if alpha == 1.0:
        assert max(ranges(model)) < 4 < min(before)


def encoder():
    """Without a head, so that nothing is tied to its embeddings; some hidden units and some embeddings are wide."""
    torch.manual_seed(0)
    model = widened(BertModel(tiny_bert()))
    model.set_attn_implementation("eager")
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[:, 3] *= 100
        for layer in model.encoder.layer:
            layer.intermediate.dense.weight[7] *= 100
    return model


def reached(model, module):
    """The largest magnitude of every feature that a module takes in."""
    found = []
    handle = module.register_forward_pre_hook(lambda m, args: found.append(args[0].abs().flatten(0, -2).amax(0)))
    logits(model)
    handle.remove()
    return found[0]


def test_hidden_units_and_the_sum_of_embeddings_are_balanced_too():
    model = encoder()
    before, layer = logits(model), model.encoder.layer[0]
    wide = reached(model, layer.output.dense)
    assert reached(model, model.embeddings.LayerNorm)[3] > 20 * reached(model, model.embeddings.LayerNorm).median()
    assert balance_(model, [inputs("bert")]) == 4
    assert torch.equal(logits(model), before)
    assert set(gained_activations(model).values()) == {64}
    assert len(gained_activations(model)) == 2
    assert "embeddings.LayerNorm" in gained_norms(model)
    sums = reached(model, model.embeddings.LayerNorm)
    assert sums.max() < 3 * sums.median()  # all of the width went, but for the rounding to powers of two
    narrower = reached(model, layer.output.dense)
    ratio = wide[7] / wide.median()
    assert ratio > 8
    assert narrower[7] / narrower.median() <= 2**0.5 * ratio**0.5 * 1.01
    assert torch.equal(narrower[wide <= wide.median()], wide[wide <= wide.median()])  # none is made wider


def test_balanced_hidden_units_lose_less():
    """Of the hidden units alone, on other input than they were balanced by."""
    errors = []
    for balanced in (False, True):
        model = encoder()
        original = logits(model)
        if balanced:
            balance_(model, [inputs("bert")])
        quantize_(model, QuantSpec(), inputs("bert"))
        calibrate_(model, [inputs("bert")])
        hidden = [site for site in quantizers(model) if site.endswith("intermediate_act_fn:output")]
        assert len(hidden) == 2
        set_mode_(model, "pass")
        set_mode_(model, "quantize", hidden)
        errors.append(float((logits(model) - original).norm()))
    assert errors[1] < 0.5 * errors[0]


def test_tied_embeddings_keep_their_units():
    model = bert()
    before = model.bert.embeddings.word_embeddings.weight.clone()
    balance_(model, [inputs("bert")])
    assert torch.equal(model.bert.embeddings.word_embeddings.weight, before)
    assert "bert.embeddings.LayerNorm" not in gained_norms(model)


@pytest.mark.parametrize("kind", ["a vector", "a slice", "behind a concatenation"])
def test_a_parameter_in_the_sum_of_embeddings_leaves_it_alone(kind):
    class Embeddings(type(encoder().embeddings)):
        def forward(self, input_ids, token_type_ids=None, **_):
            length = input_ids.shape[1]
            ids = self.word_embeddings(input_ids) + self.position_embeddings(self.position_ids[:, :length])
            ids = ids + self.token_type_embeddings(torch.zeros_like(input_ids))
            if kind == "behind a concatenation":
                first = self.shift[:1].expand(len(ids), 1, -1)
                return self.LayerNorm(torch.cat([first, ids[:, 1:]], 1))
            return self.LayerNorm(ids + (self.shift[0] if kind == "a vector" else self.shift[:length]))

    model = encoder()
    model.embeddings.shift = nn.Parameter(torch.randn(512, 32))
    model.embeddings.__class__ = Embeddings
    before = logits(model)
    assert balance_(model, [inputs("bert")]) == 4
    assert torch.equal(logits(model), before)
    assert "embeddings.LayerNorm" not in gained_norms(model)


def test_embeddings_that_a_head_outside_is_tied_to_keep_their_units():
    """The base of a model with a head is balanced: the head, which it does not see, reads the same table."""
    model = bert()
    before = logits(model)
    assert balance_(model.bert, [inputs("bert")]) == 4
    assert torch.equal(logits(model), before)
    assert "embeddings.LayerNorm" not in gained_norms(model.bert)


def test_embeddings_that_were_not_called_may_join_the_same_sum():
    """Calibrated on text, a model that also takes images computes the same of them."""
    torch.manual_seed(0)
    config = VisualBertConfig(visual_embedding_dim=16, **SIZES)
    model = widened(VisualBertModel(config))
    text = {name: tensor for name, tensor in inputs("bert").items() if name != "token_type_ids"}
    both = text | {"visual_embeds": torch.randn(len(text["input_ids"]), 3, 16)}
    both["visual_attention_mask"] = torch.ones(both["visual_embeds"].shape[:2], dtype=torch.long)
    before = logits(model, both)
    assert balance_(model, [text]) > 0
    torch.testing.assert_close(logits(model, both), before, rtol=0, atol=1e-6 * float(before.abs().max()))


def test_tables_that_are_joined_feature_by_feature_are_left():
    torch.manual_seed(0)
    model = widened(CanineModel(CanineConfig(**SIZES, num_hash_functions=4, local_transformer_stride=8)))
    ids = torch.randint(1, 500, (2, 16), generator=torch.Generator().manual_seed(0))
    before = logits(model, {"input_ids": ids})
    assert balance_(model, [{"input_ids": ids}]) > 0
    assert torch.equal(logits(model, {"input_ids": ids}), before)


def test_an_adapter_without_tokens_is_left():
    torch.manual_seed(0)
    model = widened(XmodModel(XmodConfig(**SIZES, languages=["en", "de"], default_language="en")))
    before = logits(model)
    assert balance_(model, [inputs("bert")]) > 0
    assert torch.equal(logits(model), before)


def test_an_activation_function_with_two_names_is_left():
    model = encoder()
    for layer in model.encoder.layer:
        layer.intermediate.first = layer.intermediate._modules.pop("intermediate_act_fn")
        layer.intermediate.intermediate_act_fn = layer.intermediate.first
    before = logits(model)
    assert balance_(model, [inputs("bert")]) == 4
    assert torch.equal(logits(model), before)
    assert gained_activations(model) == {}


def test_an_activation_function_that_is_used_twice_is_left():
    model = encoder()
    layers = model.encoder.layer
    layers[1].intermediate.intermediate_act_fn = layers[0].intermediate.intermediate_act_fn
    before = logits(model)
    assert balance_(model, [inputs("bert")]) == 4
    assert torch.equal(logits(model), before)
    assert gained_activations(model) == {}


def test_gained_activations_are_saved_and_loaded(tmp_path):
    model = encoder()
    before = logits(model)
    balance_(model, [inputs("bert")])
    qf.save(model, tmp_path)
    again = qf.load(tmp_path)
    again.set_attn_implementation("eager")
    assert gained_activations(again) == gained_activations(model)
    assert isinstance(again.encoder.layer[0].intermediate.intermediate_act_fn, GainedActivation)
    assert torch.equal(logits(again), before)


def test_what_int8_loses_is_less():
    batch = inputs("bert")
    model = widened(build("bert"), times=400.0)
    original = logits(model)
    balanced = copy.deepcopy(model)
    balance_(balanced, [batch])
    errors = []
    for one in (model, balanced):
        quantize_(one, QuantSpec(per_channel=True), batch)
        calibrate_(one, [batch])
        errors.append((logits(one) - original).norm())
    assert errors[1] < 0.6 * errors[0]


def test_the_plan_is_the_same_sites():
    model, batch = bert(), inputs("bert")
    balanced = copy.deepcopy(model)
    balance_(balanced, [batch])
    plans = [quantize_(one, QuantSpec(), batch) for one in (model, balanced)]
    assert plans[0].info().sites == plans[1].info().sites


def test_saved_and_loaded_it_is_the_same_with_a_head_and_without(tmp_path):
    model = bert()
    before = logits(model)
    balance_(model, [inputs("bert")])
    qf.save(model, tmp_path)
    for again in (qf.load(tmp_path), AutoModelForMaskedLM.from_pretrained(tmp_path)):
        assert changes_of(again) == changes_of(model)
        again.set_attn_implementation("eager")  # as the model that was built
        assert torch.equal(logits(again), before)
    base = AutoModel.from_pretrained(tmp_path, add_pooling_layer=False)
    base.set_attn_implementation("eager")
    assert torch.equal(logits(base), logits(model.bert))


def test_gains_missing_from_the_weights_are_told(tmp_path):
    from safetensors.torch import load_file, save_file

    model = bert()
    balance_(model, [inputs("bert")])
    qf.save(model, tmp_path)
    (weights,) = tmp_path.glob("*.safetensors")
    tensors = load_file(weights)
    save_file({name: t for name, t in tensors.items() if not name.endswith("quiet_gain")}, weights, {"format": "pt"})
    with pytest.raises(CheckpointError, match="quiet_gain"):
        qf.load(tmp_path)


def test_gates_read_what_they_read_before():
    """A gate reads what a norm gives: sums around gated attention stay as they are, those of FFNs are balanced."""
    model = bert()
    qf.apply_attention_(model, qf.AttentionSpec(gate=qf.LinearGate(pi_init=0.5)))
    before = logits(model)
    assert balance_(model, [inputs("bert")]) == 2
    assert torch.equal(logits(model), before)


@pytest.mark.parametrize("name", ["opt", "gpt2", "vit", "llama"])
def test_models_without_such_sums_are_left_as_they_are(name):
    model = build(name)
    before = copy.deepcopy(model.state_dict())
    assert balance_(model, [inputs(name)]) == 0
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_once_is_enough():
    model = bert()
    balance_(model, [inputs("bert")])
    before = copy.deepcopy(model.state_dict())
    assert balance_(model, [inputs("bert")]) == 0
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_a_projection_that_is_used_twice_is_left():
    model = bert()
    layers = model.bert.encoder.layer
    layers[1].output.dense = layers[0].output.dense
    before = logits(model)
    assert balance_(model, [inputs("bert")]) == 2
    assert torch.equal(logits(model), before)


def test_a_part_that_was_not_called_may_read_a_norm_too():
    """Cross-attention runs only when it is given something; calibrated without it, its sums must stay as they are."""
    torch.manual_seed(0)
    config = tiny_bert(decoder=True)
    config._attn_implementation = "eager"
    model = widened(BertLMHeadModel(config))
    given = inputs("bert") | {"encoder_hidden_states": torch.randn(2, 5, 32)}
    given = {name: tensor[:2] for name, tensor in given.items()}
    before = logits(model, given)
    balance_(model, [inputs("bert")])
    torch.testing.assert_close(logits(model, given), before, rtol=0, atol=1e-6 * float(before.abs().max()))


@pytest.mark.parametrize("spoil", ["not finite", "another norm", "patched"])
def test_what_cannot_be_balanced_is_not_touched(spoil):
    model = bert()
    batches = [inputs("bert"), inputs("bert")]
    if spoil == "not finite":
        model.bert.embeddings.word_embeddings.weight.data[98] = float("inf")
        batches[1]["input_ids"] = torch.full_like(batches[1]["input_ids"], 98)
    elif spoil == "another norm":
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.__class__ = type("OwnLayerNorm", (nn.LayerNorm,), {})
    else:
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.forward = module.forward
    before = copy.deepcopy(model.state_dict())
    if spoil == "not finite":
        with pytest.raises(QuietformerError, match="not finite"):
            balance_(model, batches)
    else:
        assert balance_(model, batches) == 0
    assert changes_of(model).gained_norms == ()
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_a_model_that_would_compute_something_else_is_not_touched(monkeypatch):
    model = bert()
    monkeypatch.setattr(GainedLayerNorm, "forward", nn.LayerNorm.forward)  # as if the gains did nothing
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(QuietformerError, match="left unchanged"):
        balance_(model, [inputs("bert")])
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_features_that_are_never_on_keep_their_units():
    model = bert()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.weight[10:30] = 0
                module.bias[10:30] = 0
    before = logits(model)
    assert balance_(model, [inputs("bert")]) == 4
    assert all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values())
    assert torch.equal(logits(model), before)


def test_a_part_is_saved_and_loaded_by_itself_and_half_a_model_is_refused(tmp_path):
    model = EncoderDecoderModel(
        encoder=widened(BertModel(tiny_bert())), decoder=widened(BertLMHeadModel(tiny_bert(True)))
    )
    batch = {"input_ids": inputs("bert")["input_ids"], "decoder_input_ids": inputs("bert")["input_ids"]}
    only = copy.deepcopy(model)
    assert balance_(only.encoder, [{"input_ids": batch["input_ids"]}]) == 4
    with pytest.raises(QuietformerError, match="a part of this"):
        qf.save(only, tmp_path / "half")
    before = logits(model.eval(), batch)
    assert balance_(model, [batch]) > 4
    torch.testing.assert_close(logits(model, batch), before, rtol=0, atol=1e-6 * float(before.abs().max()))
    qf.save(model.encoder, tmp_path / "part")
    part = qf.load(tmp_path / "part")
    assert changes_of(part).gained_norms
    torch.testing.assert_close(logits(part, inputs("bert")), logits(model.encoder, inputs("bert")))


def tiny_bert(decoder=False):
    return BertConfig(**SIZES, is_decoder=decoder, add_cross_attention=decoder)


def test_modes_stay_as_they_were():
    model = bert().train()
    model.bert.encoder.layer[0].output.LayerNorm.eval()
    balance_(model, [inputs("bert")])
    norms = [layer.output.LayerNorm for layer in model.bert.encoder.layer]
    assert [norm.training for norm in norms] == [False, True]


def test_what_says_nothing_of_gains_is_written_in_the_format_before():
    assert ModelChanges(attention=qf.AttentionSpec()).to_section()["version"] == 2
    section = ModelChanges(gained_norms=("a",)).to_section()
    assert section["version"] == 3
    assert ModelChanges.from_section(section).gained_norms == ("a",)
    section = ModelChanges(gained_norms=("a",), gained_activations={"b": 3}).to_section()
    assert section["version"] == 4
    assert ModelChanges.from_section(section).gained_activations == {"b": 3}


def test_mistakes_are_told():
    model = bert()
    with pytest.raises(QuietformerError, match="alpha above 0"):
        balance_(model, [inputs("bert")], alpha=0.0)
    with pytest.raises(QuietformerError, match="no batches"):
        balance_(model, [])
    with pytest.raises(QuietformerError, match="put it into a list"):
        balance_(model, inputs("bert"))
    with pytest.raises(CheckpointError, match="nowhere"):
        gain_(model, ["nowhere"])
    with pytest.raises(CheckpointError, match="no plain LayerNorm"):
        gain_(model, ["bert.encoder.layer.0.output.dense"])
    with pytest.raises(CheckpointError, match="no plain activation function"):
        gain_(model, activations={"bert.encoder.layer.0.output.dense": 64})
    for wrong in (["a"], {"a": 0}, {"a": True}, {3: 3}):
        with pytest.raises(SpecError, match="gained_activations must map names"):
            ModelChanges(gained_activations=wrong)
    quantize_(model, QuantSpec(), inputs("bert"))
    with pytest.raises(QuietformerError, match="quantized already"):
        balance_(model, [inputs("bert")])


def test_gradients_pass_and_gains_do_not_learn():
    model = bert()
    balance_(model, [inputs("bert")])
    model(**inputs("bert"))[0].square().mean().backward()
    norm = model.bert.encoder.layer[0].output.LayerNorm
    assert norm.weight.grad.abs().sum() > 0
    assert "quiet_gain" not in dict(norm.named_parameters())
