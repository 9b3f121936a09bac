"""One line puts the core into a model; nothing about the model may break, and nothing may go wrong in silence."""

from __future__ import annotations

import copy
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from transformers import BloomConfig, BloomForCausalLM, GptOssConfig, GptOssForCausalLM
from transformers.utils.quantization_config import BitsAndBytesConfig

import quietformer as qf
from quietformer.attention.core import plain_attention
from quietformer.errors import SpecError, UnsupportedModelError
from tests.tiny_models import CAUSAL, PAPER, VARIANTS, build, inputs, logits

every_variant = pytest.mark.parametrize("spec", VARIANTS.values(), ids=VARIANTS)
ALL = (*PAPER, "llama", "gpt2")


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("padded", [False, True])
def test_the_vanilla_core_is_transformers_eager_attention(name, padded):
    model, given = build(name), inputs(name, padded=padded)
    expected = logits(model, given)
    qf.apply_attention_(model, qf.AttentionSpec())
    with plain_attention():
        difference = (logits(model, given) - expected).abs()
    if padded and name != "vit":
        difference = difference[given["attention_mask"].bool()]  # what padding itself computes means nothing
    assert difference.max() == 0


@pytest.mark.parametrize("name", PAPER)
def test_training_with_dropout_follows_eager_to_the_bit(name):
    model, given = build(name).train(), inputs(name)
    torch.manual_seed(5)
    expected = model(**given).logits
    qf.apply_attention_(model, qf.AttentionSpec())
    assert all(core.training for _, core in qf.attention_cores(model))
    torch.manual_seed(5)
    with plain_attention():
        assert torch.equal(model(**given).logits, expected)


@pytest.mark.parametrize("name", ALL)
@every_variant
def test_a_gradient_reaches_every_new_parameter(name, spec):
    model = build(name)
    qf.apply_attention_(model, spec)
    model(**inputs(name)).logits.square().sum().backward()
    for layer, core in qf.attention_cores(model):
        for parameter_name, parameter in core.named_parameters():
            assert parameter.grad is not None, f"{layer}.{parameter_name}"
            assert parameter.grad.abs().sum() > 0, f"{layer}.{parameter_name}"


@pytest.mark.parametrize("name", CAUSAL)
@every_variant
def test_no_token_sees_a_later_one(name, spec):
    model, given = build(name), inputs(name)
    qf.apply_attention_(model, spec)
    changed = dict(given) | {"input_ids": given["input_ids"].clone()}
    changed["input_ids"][:, 5] = (changed["input_ids"][:, 5] + 7) % 90 + 3
    before, after = logits(model, given), logits(model, changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5:], after[:, 5:])


@pytest.mark.parametrize("name", ["bert", *CAUSAL])
@every_variant
def test_padding_changes_nothing(name, spec):
    """Neither what stands in the padding nor how much of it there is."""
    model, given = build(name), inputs(name, padded=True)
    qf.apply_attention_(model, spec)
    changed = dict(given) | {"input_ids": given["input_ids"].clone()}
    changed["input_ids"][1, -1] = 50
    real = given["attention_mask"].bool()
    assert torch.equal(logits(model, given)[real], logits(model, changed)[real])
    alone = logits(
        model, {"input_ids": given["input_ids"][1:, :-3], "attention_mask": given["attention_mask"][1:, :-3]}
    )
    torch.testing.assert_close(logits(model, given)[1:, :-3], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CAUSAL)
@every_variant
def test_generation_with_a_cache_equals_generation_without(name, spec):
    model, given = build(name), inputs(name)
    qf.apply_attention_(model, spec)
    settings = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "pad_token_id": 1}
    without = model.generate(**given, use_cache=False, **settings)
    if spec.normalizer == qf.ClippedSoftmax():
        # gamma by the sequence's length changes as the cache grows: refused, since it could not be equal
        with pytest.raises(qf.QuietformerError, match="keys='row'"):
            model.generate(**given, use_cache=True, **settings)
        return
    assert torch.equal(model.generate(**given, use_cache=True, **settings), without)


@pytest.mark.parametrize("name", ALL)
@every_variant
def test_removing_restores_the_original_exactly(name, spec):
    model, given = build(name), inputs(name)
    expected, keys, config = logits(model, given), list(model.state_dict()), model.config.to_dict()
    qf.apply_attention_(model, spec)
    qf.remove_attention_(model)
    assert torch.equal(logits(model, given), expected)
    assert list(model.state_dict()) == keys
    assert model.config.to_dict() == config
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_removing_gives_back_the_implementation_there_was():
    model = build("bert")
    model.set_attn_implementation("sdpa")
    qf.apply_attention_(model, VARIANTS["softmax1"])
    qf.apply_attention_(model, VARIANTS["gate-linear"])
    qf.remove_attention_(model)
    assert model.config._attn_implementation == "sdpa"


def test_applying_again_replaces():
    model, given = build("bert"), inputs("bert")
    qf.apply_attention_(model, VARIANTS["gate-mlp"])
    qf.apply_attention_(model, VARIANTS["softmax1"])
    fresh = build("bert")
    qf.apply_attention_(fresh, VARIANTS["softmax1"])
    assert torch.equal(logits(model, given), logits(fresh, given))
    assert list(model.state_dict()) == list(fresh.state_dict())


@every_variant
def test_attentions_are_returned_as_used(spec):
    model, given = build("bert"), inputs("bert", padded=True)
    qf.apply_attention_(model, spec)
    with torch.no_grad():
        attentions = model(**given, output_attentions=True).attentions
    assert len(attentions) == 2
    assert (attentions[0][1, ..., -3:] == 0).all()
    if spec.normalizer == qf.Softmax():
        torch.testing.assert_close(attentions[0].sum(-1), torch.ones(2, 4, 9))


@pytest.mark.parametrize("name", ALL)
@every_variant
def test_gradient_checkpointing_gives_the_same_gradients(name, spec):
    given, gradients = inputs(name), []
    for checkpointing in (False, True):
        model = build(name).train()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        torch.manual_seed(0)
        qf.apply_attention_(model, spec)
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        torch.manual_seed(1)
        model(**given).logits.square().mean().backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    assert len(gradients[0]) == len(gradients[1])
    for plain, checkpointed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, checkpointed)


@pytest.mark.parametrize("spec_name", ["clipped-gamma", "clipped-row", "gate-linear", "learned_sink"])
def test_compiled_models_compute_the_same(spec_name):
    model, given = build("bert"), inputs("bert", padded=True)
    qf.apply_attention_(model, VARIANTS[spec_name])
    expected = logits(model, given)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(logits(compiled, given), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ALL)
@every_variant
def test_bfloat16_models_stay_bfloat16(name, spec):
    model, given = build(name).to(torch.bfloat16), inputs(name)
    given = {key: value.to(torch.bfloat16) if value.is_floating_point() else value for key, value in given.items()}
    qf.apply_attention_(model, spec)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    out = logits(model, given)
    assert out.dtype == torch.bfloat16
    assert out.isfinite().all()


@every_variant
def test_a_copy_is_independent(spec):
    model, given = build("bert"), inputs("bert")
    qf.apply_attention_(model, spec)
    expected = logits(model, given)
    twin = copy.deepcopy(model)
    assert torch.equal(logits(twin, given), expected)
    qf.remove_attention_(twin)
    assert torch.equal(logits(model, given), expected)


def test_what_stays_as_it_is_is_said():
    from transformers import SiglipVisionConfig, SiglipVisionModel

    config = SiglipVisionConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32, image_size=16, patch_size=8
    )
    with pytest.warns(UserWarning, match=r"not replaced.*MultiheadAttention"):
        qf.apply_attention_(SiglipVisionModel(config), qf.AttentionSpec())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        qf.apply_attention_(build("bert"), qf.AttentionSpec())


def bloom():
    return BloomForCausalLM(BloomConfig(vocab_size=50, hidden_size=32, n_layer=1, n_head=4))


def gpt_oss():
    return GptOssForCausalLM(
        GptOssConfig(
            vocab_size=50,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            intermediate_size=32,
            num_local_experts=2,
            num_experts_per_tok=1,
        )
    )


def quantized():
    model = build("bert")
    model.config.quantization_config = BitsAndBytesConfig()
    return model


class Wrapper(nn.Module):
    def __init__(self):
        super().__init__()
        self.module = build("bert")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (bloom, "does not use transformers' attention interface"),
        (gpt_oss, "computes more than softmax attention"),
        (quantized, "already quantized"),
        (Wrapper, "apply to the transformers model inside"),
        (lambda: nn.Sequential(Wrapper()), "apply to the transformers model inside"),
        (lambda: build("bert").bert.encoder, "apply to the transformers model inside"),
        (lambda: nn.Linear(2, 2), "neither a transformers model nor a timm model"),
    ],
)
def test_a_model_that_cannot_take_it_is_refused_and_left_alone(make, message):
    model = make()
    before = list(model.state_dict())
    with pytest.raises(UnsupportedModelError, match=message) as raised:
        qf.apply_attention_(model, VARIANTS["gate-linear"])
    assert "\n" not in str(raised.value)
    assert list(model.state_dict()) == before


def test_a_spec_that_does_not_fit_leaves_the_model_as_it_was():
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=20,
        hidden_size=30,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=8,
    )
    model = Qwen3ForCausalLM(config)
    before, implementation = list(model.state_dict()), model.config._attn_implementation
    with pytest.raises(SpecError, match="not a multiple of 4 heads"):
        qf.apply_attention_(model, VARIANTS["gate-linear"])
    assert list(model.state_dict()) == before
    assert model.config._attn_implementation == implementation


def test_threads_do_not_read_each_others_inputs():
    model = build("bert")
    qf.apply_attention_(model, VARIANTS["gate-linear"])
    batches = [{"input_ids": torch.full((2, 9), token)} for token in range(3, 11)]
    expected = [logits(model, batch) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        for index, output in enumerate(pool.map(lambda i: logits(model, batches[i % 8]), range(160))):
            torch.testing.assert_close(output, expected[index % 8], rtol=1e-5, atol=1e-5)


def test_an_error_inside_a_gated_layer_leaves_nothing_behind():
    model, given = build("bert"), inputs("bert")
    qf.apply_attention_(model, VARIANTS["gate-linear"])
    _, core = next(qf.attention_cores(model))
    handle = core.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(**given)
    handle.remove()
    assert not core._calls
    copy.deepcopy(model)


def test_setting_another_implementation_afterwards_is_loud():
    model = build("bert")
    qf.apply_attention_(model, VARIANTS["softmax1"])
    model.set_attn_implementation("sdpa")
    with pytest.raises(qf.QuietformerError, match="would run vanilla attention"):
        model(**inputs("bert"))


def test_our_implementation_without_a_core_is_loud():
    model = build("bert")
    model.set_attn_implementation("quietformer")
    with pytest.raises(UnsupportedModelError, match="has none"):
        model(**inputs("bert"))


def test_nothing_to_remove_and_no_spec_are_errors():
    with pytest.raises(qf.QuietformerError, match="no Quietformer attention to remove"):
        qf.remove_attention_(build("bert"))
    with pytest.raises(qf.QuietformerError, match="must be an AttentionSpec"):
        qf.apply_attention_(build("bert"), qf.ClippedSoftmax())


def test_warmup_advances_in_every_layer():
    model = build("bert")
    qf.apply_attention_(model, VARIANTS["clipped-warmup"])
    qf.advance_warmup_(model)
    qf.advance_warmup_(model, 2)
    assert [core.normalizer.step.item() for _, core in qf.attention_cores(model)] == [3, 3]
