"""A prefix as constant keys and values: what the model computes with the tokens really in front, however it is called."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

import quietformer as qf
from quietformer.config.recorded_changes import changes_of
from tests.tiny_models import CAUSAL, build, inputs

PREFIX = (7, 3, 11)
WINDOW = 5
SIZES = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 64, "head_dim": 8, "bos_token_id": 1, "eos_token_id": None,
    "pad_token_id": 0,
}  # fmt: skip


def windowed(kind):
    torch.manual_seed(0)
    if kind == "mistral":
        model = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=WINDOW))
    else:
        layers = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
        model = Gemma3ForCausalLM(Gemma3TextConfig(**SIZES, **layers))
    return sharpened(model)


def gated(*layers):
    """Qwen's: a gate for every feature of a head, from the layer's whole input."""
    torch.manual_seed(0)
    dense = {"mlp_only_layers": [0, 1], "num_experts": 2, "num_experts_per_tok": 1, "layer_types": list(layers)}
    return sharpened(Qwen3NextForCausalLM(Qwen3NextConfig(**SIZES, **dense)))


def sharpened(model):
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0.0, 0.2)
    return model.eval()


def models():
    return (
        {name: build(name) for name in CAUSAL}
        | {name: windowed(name) for name in ("mistral", "gemma3")}
        | {"qwen3_next": gated("full_attention", "full_attention")}
    )


def with_prefix(model):
    """The model with constants, and the same model to be fed the tokens."""
    prefixed = copy.deepcopy(model)
    qf.add_prefix_(prefixed, PREFIX)
    return prefixed, model


@torch.no_grad()
def logits_behind(model, ids, mask, **given):
    """Of the model that reads the prefix, between the padding and the text."""
    front = torch.tensor(PREFIX)
    rows = [torch.cat([row[~real], front, row[real]]) for row, real in zip(ids, mask.bool(), strict=True)]
    real = torch.nn.functional.pad(mask, (0, len(front)), value=1)
    real = torch.stack([row.sort(stable=True).values for row in real])
    positions = (real.cumsum(-1) - 1).clamp(min=0)
    found = model(input_ids=torch.stack(rows), attention_mask=real, position_ids=positions, **given).logits
    return found[:, len(front) :]


@pytest.mark.parametrize("name", models())
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "left-padded"])
def test_it_is_the_model_with_the_tokens_in_front(name, padded):
    prefixed, model = with_prefix(models()[name])
    ids = torch.randint(3, 99, (2, 12), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    mask[1, : 4 if padded else 0] = 0
    expected = logits_behind(model, ids, mask)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        found = prefixed(input_ids=ids, attention_mask=mask, position_ids=positions).logits
    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()], rtol=1e-4, atol=2e-4)


HOW = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "static": {"cache_implementation": "static"},
    "no cache": {"use_cache": False},
}


@pytest.mark.parametrize("name", models())
@pytest.mark.parametrize("how", HOW)
def test_generate_writes_what_the_model_with_the_tokens_in_front_writes(name, how):
    prefixed, model = with_prefix(models()[name])
    ids = torch.randint(3, 99, (3, 6), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    mask[1, :2], mask[2, :4] = 0, 0
    told = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "eos_token_id": None} | HOW[how]
    written = prefixed.generate(input_ids=ids, attention_mask=mask, **told)[:, ids.shape[1] :]
    for row in range(len(ids)):  # one at a time, without padding
        real = ids[row, mask[row].bool()]
        front = torch.cat([torch.tensor(PREFIX), real])[None]
        expected = model.generate(input_ids=front, attention_mask=torch.ones_like(front), **told)
        assert written[row].tolist() == expected[0, front.shape[1] :].tolist()


@pytest.mark.parametrize("name", ["llama", "opt", "gemma3"])
def test_it_is_saved_and_restored(name, tmp_path):
    prefixed, _ = with_prefix(models()[name])
    qf.save(prefixed, tmp_path / "model")
    batch = inputs("llama")
    with torch.no_grad():
        expected = prefixed(**batch).logits
        assert torch.equal(qf.load(tmp_path / "model")(**batch).logits, expected)
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
        assert torch.equal(loaded(**batch).logits, expected)
        base = type(prefixed.base_model).from_pretrained(tmp_path / "model")
        assert torch.equal(base(**batch)[0], prefixed.base_model(**batch)[0])
    assert changes_of(loaded).prefix == changes_of(prefixed).prefix


def test_it_stays_through_rotation_and_quantization():
    model = sharpened(LlamaForCausalLM(LlamaConfig(**SIZES)))
    prefixed, _ = with_prefix(model)
    batch = inputs("llama")
    with torch.no_grad():
        expected = prefixed(**batch).logits
        qf.rotate_(prefixed, batch)
        torch.testing.assert_close(prefixed(**batch).logits, expected, rtol=1e-3, atol=1e-3)
        qf.quantize_(prefixed, qf.QuantSpec(weight_bits=16, activation_bits=16), batch)
        qf.calibrate_(prefixed, [batch])
        cosine = torch.nn.functional.cosine_similarity(prefixed(**batch).logits, expected, dim=-1)
    assert cosine.min() > 0.9999


@pytest.mark.parametrize(
    ("name", "tokens", "message"),
    [
        ("llama", (), "at least one token"),
        ("llama", (99,), "no token 99 in LlamaForCausalLM; a prefix is token ids from 0 to 98"),
        ("llama", (1,) * 64, "a prefix of 64 tokens leaves no room for text: LlamaForCausalLM has 64 positions"),
        ("opt", (1,) * 65, "leaves no room"),
        ("vit", (1,), "ViTForImageClassification is no causal language model"),
        ("bert", (1,), "BertForMaskedLM gives different outputs"),
    ],
)
def test_what_can_have_no_prefix_is_refused_and_unchanged(name, tokens, message):
    model = build(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    config = copy.deepcopy(model.config)
    with pytest.raises(qf.QuietformerError, match=message):
        qf.add_prefix_(model, tokens)
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert model.config.to_dict() == config.to_dict()


def test_a_second_prefix_and_another_attention_are_refused():
    model = build("llama")
    qf.add_prefix_(model, PREFIX)
    with pytest.raises(qf.QuietformerError, match=r"has a prefix already, the tokens \[7, 3, 11\]"):
        qf.add_prefix_(model, (1,))
    with pytest.raises(qf.QuietformerError, match="has a prefix, which was computed with its attention"):
        qf.apply_attention_(model, qf.AttentionSpec(normalizer=qf.Softmax1()))
    with pytest.raises(qf.QuietformerError, match="has a prefix"):
        qf.remove_attention_(model)


def test_a_model_with_recurrent_layers_gets_none():
    model = gated("linear_attention", "full_attention")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(qf.QuietformerError, match="gives different outputs"):
        qf.add_prefix_(model, PREFIX)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_a_model_that_attends_within_chunks_gets_none():
    model = build("llama")
    model.config.attention_chunk_size = 8  # as Llama 4 has it
    with pytest.raises(qf.QuietformerError, match="attends within chunks"):
        qf.add_prefix_(model, PREFIX)
