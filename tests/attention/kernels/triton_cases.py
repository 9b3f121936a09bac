"""The Triton kernels against the plain core, in Triton's interpreter or on a GPU.

`test_triton.py` runs this file in a process of its own, with TRITON_INTERPRET=1; `make gpu` runs it on a GPU.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import quietformer as qf
from quietformer.attention import core as core_module
from quietformer.attention.call_settings import CoreOptions
from quietformer.attention.core import AttentionCore, LayerCall, plain_attention
from quietformer.attention.kernels import triton_launch
from quietformer.attention.kernels.fused import runs_on
from quietformer.attention.kernels.triton_launch import Call, Tile, run_backward, run_forward
from quietformer.attention.kernels.triton_ops import row_attention
from quietformer.attention.masks import late_mask
from quietformer.config.attention import HeadGeometry, gates, normalizers
from tests.tiny_models import build, inputs, logits

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if not runs_on(DEVICE):
    pytest.skip("neither a GPU nor TRITON_INTERPRET=1", allow_module_level=True)

WIDTH = 8
FUSED = CoreOptions(weights=False)
NORMALIZERS = {
    "clipped": "clipped_softmax(gamma=-0.03)",
    "row": "clipped_softmax(alpha=2.5, zeta=1.1, keys='row')",
    "causal": "clipped_causal(alpha=1.5)",
    "normalized": "normalized_clipped(beta=0.5, zeta=1.5)",
    "clipped_softmax1": "clipped_softmax1(alpha=1.5, zeta=1.1)",
    "softmax1": "softmax1()",
    "learned_sink": "learned_sink(init=0.7)",
    "softpick": "softpick()",
    "sigmoid": "sigmoid()",
    "sigmoid_fixed": "sigmoid(bias=-1.5)",
}
MASKS = ["none", "padding", "causal", "late", "window", "bias", "random", "blind"]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Several tiles in tensors of a few rows."""
    if DEVICE.type == "cpu":
        monkeypatch.setattr(triton_launch, "tile_for", lambda *_, **__: Tile(16, 16, 4, 1))


def mask_of(kind, sizes, generator):
    """A mask of a kind, for (batch, heads, queries, keys)."""
    batch, heads, queries, keys = sizes
    places = torch.arange(keys)[None] - torch.arange(queries)[:, None] - (keys - queries)
    drawn = torch.randn(batch, heads, queries, keys, generator=generator)
    real = torch.arange(keys) < torch.randint(1, keys + 1, (batch, 1), generator=generator)
    if kind == "late":
        return late_mask(batch, queries, keys, attention_mask=real, q_offset=keys - queries, device=DEVICE)
    found = {
        "none": None,
        "padding": real[:, None, None],
        "causal": (places <= 0)[None, None],
        "window": ((places <= 0) & (places > -3))[None, None],
        "bias": torch.where(drawn[:, :1] > 0.3, -3e38, drawn[:1, :1]),
        "random": drawn > 0,
        "blind": torch.zeros(batch, 1, queries, keys, dtype=torch.bool),
    }[kind]
    return found if found is None else found.to(DEVICE)


def core_for(normalizer, heads, gate=None, width=WIDTH):
    spec = qf.AttentionSpec(normalizer=normalizers.parse(normalizer), gate=gate and gates.parse(gate))
    return AttentionCore(spec, HeadGeometry(heads, heads * width, width)).to(DEVICE)


def tensors_for(sizes, groups, generator, width=WIDTH):
    batch, heads, queries, keys = sizes
    shapes = [(batch, heads, queries, width), (batch, groups, keys, width), (batch, groups, keys, width)]
    # In memory as a model's projections leave them: (batch, tokens, heads, features).
    return [
        torch.randn(b, t, h, d, generator=generator).to(DEVICE).transpose(1, 2).requires_grad_()
        for b, h, t, d in shapes
    ]


def outcome(core, tensors, mask=None, *, fused, bias=None, others=()):
    """The context, and the gradients of all inputs and of everything that the core learns."""
    with nullcontext() if fused else plain_attention():
        context, probabilities = core(*tensors, mask, bias, FUSED)
        assert probabilities is None or not fused, "the kernels were not used"
        outer = torch.linspace(-1, 1, context.numel(), device=DEVICE).view_as(context).to(context.dtype)
        leaves = [*tensors, *core.parameters(), *others]
        found = torch.autograd.grad(context, leaves, outer, allow_unused=True)
    return [context.detach(), *(torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True))]


def assert_close(found, expected, tolerance):
    for one, other in zip(found, expected, strict=True):
        assert one.isfinite().all()
        assert one.dtype == other.dtype
        close = (one - other).abs() <= tolerance * (1 + other.abs())
        # A weight may lie so near the clip that rounding decides whether it has a gradient.
        assert float(close.float().mean()) > 0.98


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(MASKS), shape=st.sampled_from([(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)]),
    queries=st.integers(2, 20), keys=st.integers(2, 20), sharp=st.sampled_from([0.3, 1.0, 5.0]),
    seed=st.integers(0, 2**31),
)  # fmt: skip
@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_context_and_gradients_are_those_of_the_plain_core(normalizer, kind, shape, queries, keys, sharp, seed):
    generator = torch.Generator().manual_seed(seed)
    batch, groups, repeats = shape
    keys = max(keys, queries) if kind == "late" else keys
    sizes = (batch, groups * repeats, queries, keys)
    tensors = tensors_for(sizes, groups, generator)
    tensors[0] = (tensors[0].detach() * sharp).requires_grad_()
    core = core_for(NORMALIZERS[normalizer], sizes[1]).eval()
    found = outcome(core, tensors, mask_of(kind, sizes, generator), fused=True)
    generator.manual_seed(seed)
    tensors_for(sizes, groups, generator)  # draws what the first call drew
    expected = outcome(core, tensors, mask_of(kind, sizes, generator), fused=False)
    assert_close(found, expected, 2e-5 * max(1.0, sharp))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("normalizer", ["row", "learned_sink", "softpick", "sigmoid"])
def test_half_precision_is_no_further_from_float64_than_the_plain_core_in_half_precision(normalizer, dtype):
    generator = torch.Generator().manual_seed(0)
    sizes = (1, 1, 18, 20)
    mask = mask_of("causal", sizes, generator)
    halves = [x.detach().to(dtype) for x in tensors_for(sizes, 1, generator)]

    def results(dtype, fused):
        core = core_for(NORMALIZERS[normalizer], 1).to(dtype).eval()
        tensors = [x.to(dtype).requires_grad_() for x in halves]
        return outcome(core, tensors, mask, fused=fused)

    exact, found, plain = results(torch.float64, False), results(dtype, True), results(dtype, False)
    for ours, theirs, true in zip(found, plain, exact, strict=True):
        assert ours.dtype == dtype
        rounding = torch.finfo(dtype).eps * float(
            true.abs().max()
        )  # of the result itself; the interpreter cuts bits off
        ours_off, theirs_off = (float((x.double() - true).square().mean().sqrt()) for x in (ours, theirs))
        assert ours_off <= 1.2 * theirs_off + rounding


@pytest.mark.parametrize(
    ("normalizer", "gate"),
    [("causal", "linear(pi_init=0.25)"), ("softpick", "elementwise(scale=2)"), ("sigmoid", "linear()"),
     ("sigmoid", "value_state()")],
)  # fmt: skip
def test_gates_of_context_and_values_get_their_gradients(normalizer, gate):
    generator = torch.Generator().manual_seed(0)
    sizes = (1, 4, 9, 9)
    tensors = tensors_for(sizes, 2, generator)
    layer_input = torch.randn(1, 9, 4 * WIDTH, generator=generator).to(DEVICE).requires_grad_()
    torch.manual_seed(0)
    core = core_for(NORMALIZERS[normalizer], 4, gate).eval()
    mask = mask_of("causal", sizes, generator)

    def results(fused):
        core.begin(LayerCall(layer_input, weights=False))
        try:
            return outcome(core, tensors, mask, fused=fused, others=[layer_input])
        finally:
            core.end()

    assert_close(results(True), results(False), 2e-5)


@pytest.mark.parametrize(("normalizer", "heads_of_bias"), [("clipped", 1), ("softmax1", 2), ("sigmoid", 1)])
def test_a_learned_position_bias_gets_its_gradient(normalizer, heads_of_bias):
    generator = torch.Generator().manual_seed(0)
    sizes = (2, 2, 5, 18)
    tensors = tensors_for(sizes, 2, generator)
    bias = torch.randn(1, heads_of_bias, 5, 18, generator=generator).to(DEVICE).requires_grad_()
    mask = mask_of("padding", sizes, generator)
    core = core_for(NORMALIZERS[normalizer], 2).eval()
    found, expected = (outcome(core, tensors, mask, bias=bias, fused=fused, others=[bias]) for fused in (True, False))
    assert_close(found, expected, 2e-5)


@pytest.mark.parametrize("normalizer", ["row", "learned_sink", "softpick", "sigmoid"])
def test_dropout_drops_its_share_and_has_the_gradient_of_what_it_dropped(normalizer):
    """The factors are read from the kernel: with the unit matrix as values, the context is the weights that are left."""
    generator = torch.Generator().manual_seed(0)
    sizes, rate = (1, 2, 24, 24), 0.3
    query, key, _ = tensors_for(sizes, 2, generator, width=24)
    core = core_for(NORMALIZERS[normalizer], 2, width=24)
    options = CoreOptions(weights=False, dropout=rate)
    unit = torch.eye(24, device=DEVICE).expand(1, 2, 24, 24).clone().requires_grad_()

    def dropped():
        torch.manual_seed(5)
        return core(query, key, unit, options=options)[0].transpose(1, 2)

    left, weights = dropped(), core(query, key, unit, options=CoreOptions())[1]
    factors = (left / weights).detach().nan_to_num(0.0)
    assert torch.equal(left, dropped())
    seen = weights > 1e-3
    kept = factors[seen] > 0
    torch.testing.assert_close(
        factors[seen][kept], torch.full_like(factors[seen][kept], 1 / (1 - rate)), rtol=1e-3, atol=0
    )
    share = float(kept.float().mean())
    assert abs(share - (1 - rate)) < 5 * (rate * (1 - rate) / kept.numel()) ** 0.5
    outer = torch.randn(left.shape, generator=generator).to(DEVICE)
    leaves = (query, key, *core.parameters())
    assert_close(torch.autograd.grad(left, leaves, outer), torch.autograd.grad(weights * factors, leaves, outer), 1e-4)
    other = core(query, key, unit, options=options)[0].transpose(1, 2)
    assert not torch.equal(left, other)


def test_dropping_everything_leaves_nothing():
    tensors = tensors_for((1, 2, 9, 9), 2, torch.Generator().manual_seed(0))
    context, _ = core_for(NORMALIZERS["clipped"], 2)(*tensors, options=CoreOptions(weights=False, dropout=1.0))
    assert (context == 0).all()
    assert all((x == 0).all() for x in torch.autograd.grad(context.sum(), tensors))


class Largest(TorchDispatchMode):
    """The largest memory that any operation makes, our operators' own operations included."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        ours = torch.ops.quietformer
        if func is ours.row_attention.default:
            with self:
                return run_forward(Call(*args))
        if func is ours.row_attention_backward.default:
            with self:
                return run_backward(Call(*args[4:]), args[:3], args[3])
        found = func(*args, **(kwargs or {}))
        for x in found if isinstance(found, (tuple, list)) else [found]:
            if isinstance(x, torch.Tensor):
                self.size = max(self.size, x.untyped_storage().nbytes())
        return found


@pytest.mark.parametrize("normalizer", ["causal", "learned_sink", "softpick", "sigmoid"])
def test_no_tensor_is_larger_than_the_inputs(normalizer, monkeypatch):
    """Of T x T weights even one bit each would be more."""
    monkeypatch.setattr(triton_launch, "tile_for", lambda *_, **__: Tile(128, 128, 4, 1))
    length = 512
    with Largest() as largest:
        tensors = tensors_for((1, 1, length, length), 1, torch.Generator().manual_seed(0), width=4)
        mask = late_mask(1, length, length, device=DEVICE)
        core = core_for(NORMALIZERS[normalizer], 1, width=4)
        outcome(core, tensors, mask, fused=True)
    assert largest.size <= tensors[0].nbytes < length * length / 8


def test_the_operators_are_what_torch_library_asks_for():
    generator = torch.Generator().manual_seed(0)
    query, key, value = tensors_for((1, 2, 5, 6), 1, generator)
    gate = torch.rand(1, 5, 2, 1, generator=generator).to(DEVICE).requires_grad_()
    sink = torch.zeros(2, device=DEVICE, requires_grad=True)
    mask, bias = (torch.randn(1, 1, 5, 6, generator=generator).to(DEVICE) for _ in range(2))
    low = torch.full((1, 1, 1, 1), -0.02, device=DEVICE)
    given = (
        query,
        key,
        value,
        low,
        sink,
        mask,
        bias.requires_grad_(),
        None,
        gate,
        None,
        "clipped",
        [0.3, 1.1, 0.0],
        [1],
    )
    torch.library.opcheck(torch.ops.quietformer.row_attention.default, given)
    context, lse = torch.ops.quietformer.row_attention.default(*given)
    arguments = (context.detach(), lse.detach(), torch.ones_like(context), [True] * 3)
    plain = [x.detach() if isinstance(x, torch.Tensor) else x for x in given]
    torch.library.opcheck(torch.ops.quietformer.row_attention_backward.default, (*arguments, *plain))


@pytest.mark.parametrize("normalizer", ["row", "softpick"])
def test_torch_compile_and_checkpoints_keep_the_kernels(normalizer):
    generator = torch.Generator().manual_seed(0)
    sizes = (1, 1, 9, 9)
    tensors, mask = tensors_for(sizes, 1, generator), mask_of("causal", sizes, generator)
    core = core_for(NORMALIZERS[normalizer], 1)

    def attend(*given_tensors):
        return core(*given_tensors, mask, None, CoreOptions(weights=False, dropout=0.2))[0]

    def results(call):
        torch.manual_seed(3)
        context = call(*tensors)
        return [context, *torch.autograd.grad(context.square().sum(), tensors)]

    expected = results(attend)
    found = results(lambda *given_tensors: checkpoint(attend, *given_tensors, use_reentrant=False))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    seen = []

    def backend(graph, example_inputs):
        seen.extend(node.target for node in graph.graph.nodes)
        return torch._dynamo.lookup_backend("aot_eager")(graph, example_inputs)

    found = results(torch.compile(attend, fullgraph=True, backend=backend))
    assert torch.ops.quietformer.row_attention.default in seen
    assert_close(found, expected, 1e-6)


def test_a_second_derivative_is_refused():
    query, key, value = tensors_for((1, 2, 9, 9), 2, torch.Generator().manual_seed(0))
    context, _ = core_for(NORMALIZERS["clipped"], 2)(query, key, value, options=FUSED)
    (slope,) = torch.autograd.grad(context.square().sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(slope.square().sum(), key)


def test_autocast_computes_in_its_dtype():
    tensors = tensors_for((1, 2, 9, 9), 2, torch.Generator().manual_seed(0))
    core = core_for(NORMALIZERS["row"], 2)
    exact, _ = core(*tensors, options=FUSED)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        found, _ = core(*tensors, options=FUSED)
        found.sum().backward()
    assert found.dtype == torch.float32
    assert not torch.equal(found, exact)
    torch.testing.assert_close(found, exact, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_models_compute_the_same_either_way(name):
    model = build(name).to(DEVICE)
    given_inputs = {key: value.to(DEVICE) for key, value in inputs(name, padded=True).items()}
    spec = qf.AttentionSpec(normalizer=qf.ClippedSoftmax(alpha=0.5, keys="row"), gate=qf.LinearGate())
    qf.apply_attention_(model, spec)
    with plain_attention():
        expected = logits(model, given_inputs)
    found = logits(model, given_inputs)
    real = given_inputs["attention_mask"].bool()
    torch.testing.assert_close(found[real], expected[real], rtol=1e-4, atol=1e-5)


def test_other_calls_go_another_way(monkeypatch):
    """Float64, one query, weights that are asked for or watched, a soft cap, tensors that are not ordinary."""

    def forbidden(*_):
        raise AssertionError("the kernels were used")

    monkeypatch.setattr(core_module, "fused_attention", forbidden)
    generator = torch.Generator().manual_seed(0)
    tensors = tensors_for((1, 2, 9, 9), 2, generator)
    core = core_for(NORMALIZERS["row"], 2)
    with pytest.raises(AssertionError, match="the kernels were used"):
        core(*tensors, options=FUSED)
    core(*tensors, options=CoreOptions())
    core(*tensors, options=CoreOptions(weights=False, softcap=5.0))
    core(tensors[0][:, :, :1], *tensors[1:], options=FUSED)
    core(*(x.double() for x in tensors), options=FUSED)
    core(*(x.as_subclass(nn.Buffer) for x in tensors), options=FUSED)
    handle = core.taps["probabilities"].register_forward_hook(lambda *_: None)
    core(*tensors, options=FUSED)
    handle.remove()
    core_for("softmax()", 2)(*tensors, options=FUSED)


@pytest.mark.parametrize("kind", ["clipped", "softpick"])
def test_a_window_that_is_described_is_the_window_as_a_mask(kind):
    generator = torch.Generator().manual_seed(0)
    tensors = tensors_for((1, 1, 40, 42), 1, generator)
    low = torch.full((1, 1, 1, 1), -0.03, device=DEVICE)
    places = torch.arange(42)[None] - torch.arange(40)[:, None] - 2
    mask = ((places <= 0) & (places > -5)).to(DEVICE)

    def results(mask, span):
        context = row_attention(Call(*tensors, low, None, mask, *[None] * 4, kind, [0.3, 1.0, 0.0], span))
        outer = torch.linspace(-1, 1, context.numel(), device=DEVICE).view_as(context)
        return [context, *torch.autograd.grad(context, tensors, outer)]

    assert_close(results(None, [2, 5]), results(mask, []), 1e-5)
