"""A residual stream in another basis: the same model, its large features spread, refused where it would be another model."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from quietformer.errors import QuietformerError
from quietformer.transforms.gated_ffn import equalise_
from quietformer.transforms.hadamard import hadamard, spreading
from quietformer.transforms.rotation import rotate_
from tests.tiny_models import build, inputs

WIDTH = 48
BATCH = {"input_ids": torch.randint(3, 99, (3, 9), generator=torch.Generator().manual_seed(0))}
SIZES = {
    "vocab_size": 99, "hidden_size": WIDTH, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 64,
}  # fmt: skip


def tiny(kind=LlamaForCausalLM, config=LlamaConfig, **fields):
    torch.manual_seed(0)
    model = kind(config(**SIZES, **fields)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)  # gains of norms and biases, too
    return model


@torch.no_grad()
def logits(model):
    return model(**BATCH).logits


def test_hadamard_matrices_are_what_they_say():
    orders = [order for order in range(1, 200) if hadamard(order) is not None]
    assert {1, 2, 4, 8, 12, 16, 20, 24, 28, 36, 64, 128, 192} <= set(orders)
    for order in orders:
        matrix = hadamard(order)
        assert torch.equal(matrix.abs(), torch.ones(order, order, dtype=torch.float64))
        assert torch.equal(matrix @ matrix.T, order * torch.eye(order, dtype=torch.float64))


@settings(deadline=None)
@given(st.sampled_from([576, 768, 896, 960, 1024, 3072, 7, 90]), st.integers(0, 5))
def test_the_basis_is_orthogonal_for_every_width(width, seed):
    basis = spreading(width, seed)
    torch.testing.assert_close(basis @ basis.T, torch.eye(width, dtype=torch.float64), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "model",
    [
        tiny(),
        tiny(tie_word_embeddings=True),
        tiny(Qwen2ForCausalLM, Qwen2Config),
        tiny(attention_bias=True, mlp_bias=True),
    ],
    ids=["llama", "tied", "qwen2", "biases"],
)
def test_a_rotated_model_computes_the_same(model, tmp_path):
    before, embedded = logits(model), model.get_input_embeddings().weight.clone()
    rotate_(model, BATCH)
    assert equalise_(model, [BATCH]) == SIZES["num_hidden_layers"]
    torch.testing.assert_close(logits(model), before, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(model.get_input_embeddings().weight, embedded)
    assert torch.equal(model.model.norm.weight, torch.ones(WIDTH))
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)  # plain transformers
    torch.testing.assert_close(logits(again), before, rtol=1e-4, atol=1e-4)


def test_a_large_feature_is_spread_evenly():
    model = tiny()
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[5] *= 1000
    seen = []
    model.model.layers[1].mlp.down_proj.register_forward_hook(lambda m, i, o: seen.append(o.detach()))
    logits(model)
    rotate_(model, BATCH)
    logits(model)
    largest = [x.abs().amax().item() for x in (seen[0], seen[-1])]
    assert largest[1] < 1.3 * largest[0] / WIDTH**0.5
    torch.testing.assert_close(seen[-1].norm(dim=-1), seen[0].norm(dim=-1), rtol=1e-4, atol=1e-3)


def test_units_become_even(tmp_path):
    model = tiny()
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[3] *= 500
    before, ranges = logits(model), []
    model.model.layers[0].mlp.down_proj.register_forward_pre_hook(lambda m, a: ranges.append(a[0].abs().max().item()))
    logits(model)
    equalise_(model, [BATCH])
    torch.testing.assert_close(logits(model), before, rtol=1e-4, atol=1e-4)
    assert ranges[-1] < 0.2 * ranges[0]


@pytest.mark.parametrize("name", ["bert", "opt", "gpt2", "vit"])
def test_other_models_are_refused_and_left_as_they_were(name):
    model = build(name)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(QuietformerError, match="rotated"):
        rotate_(model, inputs(name))
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
