"""A mask that is not made means what the made one means, and becomes it for whoever looks."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers.masking_utils import (
    and_masks,
    bidirectional_mask_function,
    causal_mask_function,
    eager_mask,
    sliding_window_overlay,
)

import quietformer as qf
from quietformer.attention.call_settings import CoreOptions
from quietformer.attention.core import AttentionCore, plain_attention
from quietformer.attention.masks import LateMask, late_mask
from quietformer.attention.normalizers.clipped_softmax import count_keys
from quietformer.config.attention import HeadGeometry
from tests.tiny_models import CAUSAL, build, inputs, logits

pytestmark = pytest.mark.usefixtures("small_blocks")
WIDTH = 8
NORMALIZERS = {
    "softmax": qf.Softmax(),
    "clipped": qf.ClippedSoftmax(alpha=1.5),
    "row": qf.ClippedSoftmax(alpha=1.5, keys="row"),
    "stretched": qf.ClippedSoftmax(gamma=-0.05, zeta=1.2),
    "softmax1": qf.Softmax1(),
    "learned_sink": qf.LearnedSink(init=0.7),
}


@st.composite
def asked(draw):
    """As transformers asks for a mask, with padding on either side or none."""
    batch, queries, offset = draw(st.integers(1, 3)), draw(st.integers(2, 9)), draw(st.integers(0, 4))
    keys = queries + offset
    padding = None
    kind = draw(st.sampled_from(["none", "full", "left", "right", "scattered"]))
    if kind != "none":
        sizes = torch.tensor(draw(st.lists(st.integers(1, keys), min_size=batch, max_size=batch)))
        places = torch.arange(keys)
        padding = {
            "full": torch.ones(batch, keys, dtype=torch.bool),
            "left": places >= keys - sizes[:, None],
            "right": places < sizes[:, None],
            "scattered": torch.rand(batch, keys, generator=torch.Generator().manual_seed(int(sizes.sum()))) > 0.5,
        }[kind]
    return {"batch_size": batch, "q_length": queries, "kv_length": keys, "q_offset": offset, "attention_mask": padding}


@settings(max_examples=60, deadline=None)
@given(given_mask=asked(), causal=st.booleans(), skip=st.booleans())
def test_it_becomes_the_mask_that_eager_attention_gets(given_mask, causal, skip):
    function = causal_mask_function if causal else bidirectional_mask_function
    words = given_mask | {
        "mask_function": function,
        "dtype": torch.float32,
        "allow_is_bidirectional_skip": skip and not causal,
    }
    expected, found = eager_mask(**words), late_mask(**words)
    if expected is None:
        assert found is None
        return
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    if causal:
        assert isinstance(found, LateMask)
        visible = (expected == 0).expand(given_mask["batch_size"], -1, -1, -1)
        assert torch.equal(found.causal.whole().expand_as(visible), visible)
        for by in ("sequence", "row"):
            counted = torch.as_tensor(found.causal.count(by))
            assert torch.equal(counted.expand_as(count_keys(visible, by)), count_keys(visible, by))
    assert torch.equal(found[..., 1:], expected[..., 1:])
    assert torch.equal(found + 0, expected)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given_mask=asked(), causal=st.booleans(), seed=st.integers(0, 2**31))
@pytest.mark.parametrize("name", NORMALIZERS)
def test_attention_is_that_with_the_mask_made(name, given_mask, causal, seed):
    function = causal_mask_function if causal else bidirectional_mask_function
    mask = late_mask(**given_mask, mask_function=function)
    generator = torch.Generator().manual_seed(seed)
    heads = 2
    shapes = [
        (given_mask["batch_size"], heads, given_mask[which], WIDTH) for which in ("q_length", "kv_length", "kv_length")
    ]
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    core = AttentionCore(qf.AttentionSpec(normalizer=NORMALIZERS[name]), HeadGeometry(heads, 16, WIDTH)).double().eval()
    with plain_attention():
        made = eager_mask(**given_mask, mask_function=function)
        expected, _ = core(*tensors, made, options=CoreOptions(weights=False))
    found, _ = core(*tensors, mask, options=CoreOptions(weights=False))
    torch.testing.assert_close(found, expected)
    outer = torch.randn(found.shape, generator=generator, dtype=torch.float64)
    ours, theirs = (torch.autograd.grad(context, tensors, outer) for context in (found, expected))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


def test_whatever_else_a_mask_means_is_made_at_once():
    window = and_masks(sliding_window_overlay(3), causal_mask_function)
    words = {"batch_size": 1, "q_length": 6, "kv_length": 6, "mask_function": window}
    found = late_mask(**words)
    assert not isinstance(found, LateMask)
    assert torch.equal(found, eager_mask(**words))


def test_a_mask_can_be_copied_moved_and_printed():
    mask = late_mask(1, 3, 3)
    assert "causal=True" in repr(mask)
    made = eager_mask(1, 3, 3)
    assert mask.causal is not None
    assert torch.equal(mask.to(torch.float64), made.to(torch.float64))
    assert torch.equal(mask.clone(), made)
    assert torch.equal(copy.deepcopy(mask) + 0, made)
    mask[0, 0, 0, 2] = 7.0
    mask[0, 0, 1:].zero_()
    assert mask.causal is None
    assert float(mask[0, 0, 0, 2]) == 7.0
    assert (mask[0, 0, 1:] == 0).all()


@pytest.mark.parametrize("name", CAUSAL)
def test_a_long_causal_model_never_makes_its_mask(name, monkeypatch):
    model, given_inputs = build(name), inputs(name)
    qf.apply_attention_(model, qf.AttentionSpec(normalizer=qf.ClippedSoftmax(alpha=2)))
    with plain_attention():
        expected = logits(model, given_inputs)
    made = []
    monkeypatch.setattr("quietformer.attention.masks.eager_mask", lambda **words: made.append(1) or eager_mask(**words))
    torch.testing.assert_close(logits(model, given_inputs), expected, rtol=1e-4, atol=1e-5)
    assert not made
