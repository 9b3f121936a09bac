"""The core against its formula in float64, for every way a mask can arrive."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import quietformer as qf
from quietformer.attention.call_settings import CoreOptions
from quietformer.attention.core import TAPS, AttentionCore, LayerCall
from quietformer.config.attention import HeadGeometry
from quietformer.errors import UnsupportedModelError


def tensors(heads=4, groups=2, queries=3, keys=5, width=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    return draw(2, heads, queries, width), draw(2, groups, keys, width), draw(2, groups, keys, width)


def core(spec=None, heads=4):
    return AttentionCore(spec or qf.AttentionSpec(), HeadGeometry(heads, 32, 8)).eval()


def formula(query, key, value, visible, scaling, bias=0.0, softcap=None):
    """One head and one query at a time, in float64, over the visible keys alone."""
    query, key, value = query.double(), key.double(), value.double()
    out = torch.zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[-1], dtype=torch.float64)
    for b in range(query.shape[0]):
        for h in range(query.shape[1]):
            g = h // (query.shape[1] // key.shape[1])
            for q in range(query.shape[2]):
                seen = visible[b, 0, q].nonzero().flatten()
                if len(seen):
                    scores = key[b, g, seen] @ query[b, h, q] * scaling
                    scores = scores if softcap is None else torch.tanh(scores / softcap) * softcap
                    out[b, q, h] = torch.softmax(scores + bias, 0) @ value[b, g, seen]
    return out


@settings(deadline=None)
@given(
    heads=st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 1)]),
    queries=st.integers(1, 5),
    keys=st.integers(1, 6),
    scaling=st.sampled_from([None, 1.0, 0.3]),
    softcap=st.sampled_from([None, 2.0]),
    seed=st.integers(0, 10_000),
)
def test_the_core_is_the_formula(heads, queries, keys, scaling, softcap, seed):
    query, key, value = tensors(*heads, queries, keys, seed=seed)
    visible = torch.rand(2, 1, queries, keys, generator=torch.Generator().manual_seed(seed)) > 0.4
    expected = formula(query, key, value, visible, 8**-0.5 if scaling is None else scaling, softcap=softcap)
    context, _ = core(heads=heads[0])(query, key, value, visible, options=CoreOptions(scaling=scaling, softcap=softcap))
    torch.testing.assert_close(context.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("hidden", [torch.finfo(torch.float32).min, float("-inf"), -1e9, -1e4])
def test_every_kind_of_mask_hides_the_same_keys(hidden):
    query, key, value = tensors()
    visible = torch.tensor([[True, True, False, True, False], [False] * 5, [True] * 5]).expand(2, 1, 3, 5)
    additive = torch.zeros(2, 1, 3, 5).masked_fill(~visible, hidden)
    with_bool, probs = core()(query, key, value, visible)
    with_float, same = core()(query, key, value, additive)
    torch.testing.assert_close(with_float, with_bool)
    assert torch.equal(probs == 0, same == 0)
    assert (with_float[:, 1] == 0).all()


def test_a_bfloat16_mask_hides_as_well():
    query, key, value = (tensor.bfloat16() for tensor in tensors())
    mask = torch.zeros(2, 1, 3, 5, dtype=torch.bfloat16)
    mask[..., 3:] = -1e4  # -9984 in bfloat16
    assert (core()(query, key, value, mask)[1][..., 3:] == 0).all()


def test_a_hidden_key_does_not_win_over_visible_ones_with_low_scores():
    query, key, value = torch.full((1, 1, 1, 8), 100.0), torch.full((1, 1, 2, 8), -100.0), torch.ones(1, 1, 2, 8)
    key[:, :, 1] = 0.0
    mask = torch.tensor([[[[0.0, -1e4]]]])
    for normalizer in (qf.Softmax(), qf.ClippedSoftmax()):
        _, probs = core(qf.AttentionSpec(normalizer=normalizer), heads=1)(query, key, value, mask)
        assert probs.flatten().tolist() == [1.0, 0.0]


def test_gates_that_read_only_part_of_the_input_are_refused():
    """A layer that pools its queries gives fewer than it got, which with one sequence looks like a packed chunk."""
    module = core(qf.AttentionSpec(gate=qf.LinearGate()))
    module.begin(LayerCall(inputs=torch.randn(1, 12, 32)))
    query, key, value = (tensor[:1] for tensor in tensors())
    module(query, key, value)
    with pytest.raises(UnsupportedModelError, match="3 of 12 tokens"):
        module.end()


def test_a_bias_in_the_mask_is_added_and_hides_nothing():
    query, key, value = tensors()
    bias = torch.linspace(-90, 3, 5).expand(2, 1, 3, 5)
    context, _ = core()(query, key, value, bias)
    expected = formula(query, key, value, torch.ones(2, 1, 3, 5), 8**-0.5, bias=bias[0, 0, 0].double())
    torch.testing.assert_close(context.double(), expected, rtol=1e-4, atol=1e-5)
    moved, _ = core()(query, key, value, None, position_bias=bias)
    torch.testing.assert_close(moved, context)


def test_a_mask_longer_than_the_keys_is_cut():
    query, key, value = tensors()
    mask = torch.zeros(2, 1, 3, 9)
    torch.testing.assert_close(core()(query, key, value, mask)[0], core()(query, key, value)[0])


def test_infinite_masks_leave_no_nan_in_the_gradient():
    query, key, value = (tensor.requires_grad_() for tensor in tensors())
    mask = torch.full((2, 1, 3, 5), float("-inf"))
    mask[..., 2, :] = 0
    for normalizer in (qf.Softmax(), qf.ClippedSoftmax(), qf.Softmax1()):
        context, _ = core(qf.AttentionSpec(normalizer=normalizer))(query, key, value, mask)
        for gradient in torch.autograd.grad(context.square().sum(), (query, key, value)):
            assert gradient.isfinite().all()


def test_dropout_works_on_the_weights_and_only_in_training():
    query, key, value = tensors()
    module = core()
    assert torch.equal(module(query, key, value, options=CoreOptions(dropout=0.5))[0], module(query, key, value)[0])
    torch.manual_seed(0)
    dropped = module.train()(query, key, value, options=CoreOptions(dropout=0.5))[0]
    torch.manual_seed(0)
    _, probs = module.eval()(query, key, value)
    kept = torch.nn.functional.dropout(probs, 0.5, training=True)
    torch.testing.assert_close(dropped, (kept @ value.repeat_interleave(2, 1)).transpose(1, 2))


def test_taps_see_and_may_replace_each_stage():
    query, key, value = tensors()
    module = core(qf.AttentionSpec(gate=qf.LinearGate()))
    module.begin(LayerCall(inputs=torch.randn(2, 3, 32)))
    seen = {}
    for name, tap in module.taps.items():
        tap.register_forward_hook(lambda _, args, __, name=name: seen.setdefault(name, args[0].shape) and None)
    module(query, key, value)
    assert tuple(seen) == TAPS
    assert seen["scores"] == (2, 4, 3, 5)
    assert seen["gate"] == (2, 3, 4, 1)
    module.taps["context"].register_forward_hook(lambda *_: torch.zeros(2, 3, 4, 8))
    assert (module(query, key, value)[0] == 0).all()


def test_a_wrong_number_of_heads_is_loud():
    with pytest.raises(UnsupportedModelError, match="expected queries"):
        core(heads=5)(*tensors())


def test_a_gate_without_its_input_is_loud():
    with pytest.raises(UnsupportedModelError, match="the gate has no input"):
        core(qf.AttentionSpec(gate=qf.LinearGate()))(*tensors())


def test_a_hidden_key_whose_score_overflows_in_half_precision_does_no_harm():
    core = AttentionCore(qf.AttentionSpec(), HeadGeometry(1, 4, 4)).eval()
    query = torch.full((1, 1, 1, 4), 200.0, dtype=torch.float16)
    key = torch.stack([torch.zeros(4), torch.full((4,), 200.0)]).to(torch.float16)[None, None]  # 160,000 in all
    value = torch.tensor([[1.0] * 4, [2.0] * 4], dtype=torch.float16)[None, None]
    hidden = torch.tensor([[[[0.0, torch.finfo(torch.float16).min]]]], dtype=torch.float16)
    context, probabilities = core(query, key, value, hidden, options=CoreOptions(scaling=1.0))
    assert torch.equal(probabilities.flatten(), torch.tensor([1.0, 0.0], dtype=torch.float16))
    assert torch.equal(context.flatten(), torch.ones(4, dtype=torch.float16))
