"""Ways to the context that never hold the weights: each gives what the plain core gives, forward and backward."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import quietformer as qf
from quietformer.attention.call_settings import CoreOptions, FusedOptions
from quietformer.attention.core import AttentionCore, _has_own, plain_attention
from quietformer.attention.kernels import flex
from quietformer.attention.kernels.blocked import Clipping, clipped_attention
from quietformer.attention.kernels.flex import flex_clipped_attention
from quietformer.attention.masks import Causal, read_mask
from quietformer.attention.normalizers.clipped_softmax import ClippedSoftmaxNormalizer
from quietformer.attention.normalizers.softmax import SoftmaxNormalizer
from quietformer.config.attention import HeadGeometry, normalizers
from tests.tiny_models import CAUSAL, PAPER, VARIANTS, build, inputs, logits

pytestmark = pytest.mark.usefixtures("small_blocks", "compiled_and_not")
WIDTH = 8
NO_WEIGHTS = CoreOptions(weights=False)


def has_own_attend(spec):
    """Whether this normalizer has a way to the context that never holds the weights."""
    return _has_own("attend", type(spec.normalizer.build(HeadGeometry(4, 32, 8))))


NORMALIZERS = {
    "softmax": qf.Softmax(),
    "clipped": qf.ClippedSoftmax(),
    "row": qf.ClippedSoftmax(alpha=2.5, keys="row"),
    "causal": normalizers.parse("clipped_causal(alpha=1.5)"),
    "stretched": qf.ClippedSoftmax(gamma=-0.05, zeta=1.2),
    "stretched_row": qf.ClippedSoftmax(alpha=1.5, zeta=1.1, keys="row"),
    "unclipped": qf.ClippedSoftmax(gamma=0.0),
    "dead": qf.ClippedSoftmax(gamma=-20.0),
    "softmax1": qf.Softmax1(),
    "learned_sink": qf.LearnedSink(init=0.7),
    "normalized": qf.NormalizedClipped(beta=0.5, zeta=1.5),
    "clipped_softmax1": qf.ClippedSoftmax1(gamma=-0.002),
    "clipped_softmax1_row": qf.ClippedSoftmax1(alpha=1.5, zeta=1.1, keys="row"),
}
FUSED_VARIANTS = {name: spec for name, spec in VARIANTS.items() if has_own_attend(spec)}


@st.composite
def calls(draw):
    """Shapes, a mask of some kind, and how sharp the scores are."""
    batch, groups, repeats = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    queries, keys = draw(st.integers(1, 11)), draw(st.integers(1, 13))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def drawn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    heads = groups * repeats
    query, key, value = drawn(batch, heads, queries, WIDTH), *(drawn(batch, groups, keys, WIDTH) for _ in range(2))
    kind = draw(st.sampled_from(["none", "padding", "causal", "window", "bias", "random", "blind"]))
    places = torch.arange(keys)[None] - torch.arange(queries)[:, None] - (keys - queries)
    mask = {
        "none": lambda: None,
        "padding": lambda: torch.arange(keys) < torch.randint(1, keys + 1, (batch, 1, 1, 1), generator=generator),
        "causal": lambda: (places <= 0)[None, None],
        "window": lambda: ((places <= 0) & (places > -3))[None, None],
        "bias": lambda: torch.where(drawn(batch, 1, queries, keys) > 0.3, -3e38, drawn(1, 1, queries, keys)),
        "random": lambda: drawn(batch, heads, queries, keys) > 0,
        "blind": lambda: torch.zeros(batch, 1, queries, keys, dtype=torch.bool),
    }[kind]()
    return query * draw(st.sampled_from([0.1, 1.0, 8.0])), key, value, mask


def core_for(normalizer, heads):
    core = AttentionCore(qf.AttentionSpec(normalizer=normalizer), HeadGeometry(heads, heads * WIDTH, WIDTH))
    return core.double().eval()


def outcome(core, given_tensors, mask, *, weights, outer=None):
    """The context and the gradients of everything that has one."""
    tensors = [x.clone().requires_grad_() for x in given_tensors]
    context, probabilities = core(*tensors, mask, options=CoreOptions(weights=weights))
    assert (probabilities is None) == (not weights)
    outer = torch.linspace(-1, 1, context.numel(), dtype=context.dtype).view_as(context) if outer is None else outer
    learned = list(core.parameters())
    return [context, *torch.autograd.grad(context, [*tensors, *learned], outer, allow_unused=True)]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(call=calls(), dtype=st.sampled_from([torch.float64, torch.float32]))
@pytest.mark.parametrize("name", NORMALIZERS)
def test_context_and_gradients_are_those_of_the_plain_core(name, call, dtype):
    *tensors, mask = call
    core = core_for(NORMALIZERS[name], tensors[0].shape[1])
    expected = outcome(core, tensors, mask, weights=True)
    found = outcome(core.to(dtype), [x.to(dtype) for x in tensors], mask, weights=False)
    # Steep scores of width 8 reach some twenties, and float32 is off by their rounding.
    tolerance = 1e-10 if dtype == torch.float64 else 3e-5 * max(1.0, float(tensors[0].abs().max()))
    for one, other in zip(found, expected, strict=True):
        other = torch.zeros_like(one) if other is None else other
        assert one.isfinite().all()
        close = (one.double() - other).abs() <= tolerance * (1 + other.abs())
        # A weight may lie so near the clip that rounding decides; then its gradient is there or not.
        assert float(close.double().mean()) > (1.0 if dtype == torch.float64 else 0.98) - 1e-9


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NORMALIZERS)
def test_every_dtype_comes_back_as_it_went_in(name, dtype):
    torch.manual_seed(0)
    tensors = [torch.randn(2, 3, length, WIDTH) for length in (9, 12, 12)]
    mask = torch.arange(12) < torch.tensor([12, 7]).view(2, 1, 1, 1)
    core = core_for(NORMALIZERS[name], 3).to(torch.float32)
    exact = outcome(core, tensors, mask, weights=True)
    low = core.to(dtype)
    found = outcome(low, [x.to(dtype) for x in tensors], mask, weights=False)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 6e-2, torch.float16: 1e-2}[dtype]
    for one, other in zip(found, exact, strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one.float(), other, rtol=tolerance, atol=tolerance)


def test_autocast_changes_the_arithmetic_and_breaks_nothing():
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 2, 9, WIDTH, requires_grad=True) for _ in range(3))
    exact = clipped_attention(query, key, value, Clipping(-0.1), scaling=0.3)
    with torch.autocast("cpu", torch.bfloat16):
        found = clipped_attention(query, key, value, Clipping(-0.1), scaling=0.3)
        found.sum().backward()
    torch.testing.assert_close(found, exact)


@pytest.mark.parametrize("zeta", [1.0, 1.3])
@pytest.mark.parametrize("per_row", [False, True])
def test_dropout_has_the_gradient_of_what_it_dropped(zeta, per_row):
    """Against finite differences, the choice being the same at every evaluation."""
    torch.manual_seed(1)
    tensors = [torch.randn(2, 2, 6, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    gamma = torch.linspace(-0.2, -0.05, 6, dtype=torch.float64).view(1, 1, 6, 1) if per_row else -0.1

    def attend(*given):
        torch.manual_seed(7)
        return clipped_attention(*given, Clipping(gamma, zeta, dropout=0.4), scaling=0.5)

    assert torch.autograd.gradcheck(attend, tensors)


def test_dropout_keeps_the_mean_and_drops_its_share():
    torch.manual_seed(0)
    query, key = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 4000, 4)
    value = torch.ones(1, 1, 4000, 4)
    found = clipped_attention(query, key, value, Clipping(0.0, dropout=0.3), scaling=1.0)
    assert abs(float(found.mean()) - 1) < 0.1
    again = clipped_attention(query, key, value, Clipping(0.0, dropout=0.3), scaling=1.0)
    assert not torch.equal(found, again)


def flex_stand_in(query, key, value, *, score_mod, scale, return_aux):
    """What FlexAttention is documented to compute, in operations that have gradients on a CPU too."""
    scores = query @ key.transpose(-1, -2) * scale
    places = torch.meshgrid(*(torch.arange(size) for size in scores.shape), indexing="ij")
    scores = score_mod(scores, *places)
    lse = torch.logsumexp(scores, -1)
    weights = torch.where(lse[..., None].isfinite(), torch.exp(scores - lse[..., None]), 0.0)
    return weights @ value, SimpleNamespace(lse=lse)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(call=calls(), zeta=st.sampled_from([1.0, 1.2]), by_row=st.booleans(), causal=st.booleans())
def test_flex_attention_in_two_passes_gives_the_same(call, zeta, by_row, causal):
    *tensors, mask = call
    heads = tensors[0].shape[1]
    query, key, value = (x.repeat_interleave(heads // x.shape[1], 1) for x in tensors)
    asked = None
    if causal:
        asked = Causal(query.shape[2], key.shape[2], offset=max(0, key.shape[2] - query.shape[2]))
        mask = asked.whole()
    core = core_for(qf.ClippedSoftmax(alpha=1.5, zeta=zeta, keys="row" if by_row else "sequence"), heads)
    expected = outcome(core, (query, key, value), mask, weights=True)
    _, visible = read_mask(mask, key.shape[2], torch.float64)
    clipping = Clipping(core.normalizer._gamma_for(key.shape[2], visible, torch.float64), zeta)
    how = {"scaling": WIDTH**-0.5, "mask": asked if causal else mask}
    with torch.no_grad():
        found = flex_clipped_attention(query.float(), key.float(), value.float(), clipping, **how)
    torch.testing.assert_close(found.transpose(1, 2).double(), expected[0], rtol=1e-3, atol=1e-4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flex, "_uncompiled", lambda: flex_stand_in)
        leaves = [x.clone().requires_grad_() for x in (query, key, value)]
        context = flex_clipped_attention(*leaves, clipping, **how).transpose(1, 2)
        outer = torch.linspace(-1, 1, context.numel(), dtype=context.dtype).view_as(context)
        slopes = torch.autograd.grad(context, leaves, outer)
    for one, other in zip([context, *slopes], expected, strict=True):
        close = (one - other).abs() <= 1e-5 * (1 + other.abs())  # gamma is float32 there
        assert float(close.double().mean()) > 0.97


@pytest.mark.parametrize("name", [*PAPER, "llama"])
@pytest.mark.parametrize("spec", VARIANTS.values(), ids=VARIANTS)
def test_models_compute_the_same_either_way(name, spec):
    model, given_inputs = build(name), inputs(name, padded=name != "vit")
    qf.apply_attention_(model, spec)

    def gradients():
        model.zero_grad()
        found = logits(model, given_inputs)
        model(**given_inputs).logits.square().mean().backward()
        return found, {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}

    with plain_attention():
        expected, slopes = gradients()
    found, ours = gradients()
    real = ... if name == "vit" else given_inputs["attention_mask"].bool()
    torch.testing.assert_close(found[real], expected[real], rtol=1e-4, atol=1e-5)
    assert ours.keys() == slopes.keys()
    for key in ours:
        torch.testing.assert_close(ours[key], slopes[key], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("spec", FUSED_VARIANTS.values(), ids=FUSED_VARIANTS)
def test_no_model_computes_weights_that_nobody_asks_for(spec, monkeypatch):
    model, given_inputs = build("bert"), inputs("bert", padded=True)
    qf.apply_attention_(model, spec)
    expected = logits(model, given_inputs)

    def forbidden(self, *args):
        raise AssertionError("weights were computed")

    for _, core in qf.attention_cores(model):
        owner = next(kind for kind in type(core.normalizer).__mro__ if "forward" in vars(kind))
        monkeypatch.setattr(owner, "forward", forbidden)
    assert torch.equal(logits(model, given_inputs), expected)
    with pytest.raises(AssertionError, match="weights were computed"), torch.no_grad():
        model(**given_inputs, output_attentions=True)


@pytest.mark.parametrize("name", sorted({*PAPER, *CAUSAL}))
def test_attentions_are_there_when_asked_for(name):
    """By an argument; in the config it is refused, since the model could not be saved."""
    model, given_inputs = build(name), inputs(name)
    qf.apply_attention_(model, VARIANTS["clipped-row"])
    with torch.no_grad():
        attentions = model(**given_inputs, output_attentions=True).attentions
    assert len(attentions) == 2
    assert all(x is not None and x.dim() == 4 for x in attentions)


@pytest.mark.parametrize("tap", ["scores", "probabilities"])
def test_a_hook_on_a_tap_sees_every_call(tap):
    model, given_inputs = build("bert"), inputs("bert")
    qf.apply_attention_(model, VARIANTS["clipped-gamma"])
    seen = []
    for _, core in qf.attention_cores(model):
        core.taps[tap].register_forward_hook(lambda module, args, output: seen.append(output.shape))
    logits(model, given_inputs)
    assert len(seen) == 2


def test_a_normalizer_of_ones_own_is_not_passed_by():
    class Halved(SoftmaxNormalizer):
        def forward(self, scores_BHQK, visible=None):
            return super().forward(scores_BHQK, visible) / 2

    class Quartered(Halved):
        def attend(self, *tensors, **how):
            return None

    for kind, part in ((Halved, 2), (Quartered, 2)):
        core = core_for(qf.Softmax(), 1)
        tensors = [torch.randn(1, 1, 5, WIDTH, dtype=torch.float64) for _ in range(3)]
        whole, _ = core(*tensors, options=NO_WEIGHTS)
        core = AttentionCore(core.spec, core.geometry)
        core.normalizer = kind()
        found, _ = core(*tensors, options=NO_WEIGHTS)
        torch.testing.assert_close(found, whole / part)


def test_second_derivatives_are_refused_and_had_in_plain_attention():
    core = core_for(qf.ClippedSoftmax(gamma=-0.01), 2)
    query, key, value = (torch.randn(1, 2, 9, WIDTH, dtype=torch.float64, requires_grad=True) for _ in range(3))

    def slope_of_slope():
        (slope,) = torch.autograd.grad(
            core(query, key, value, options=NO_WEIGHTS)[0].square().sum(), query, create_graph=True
        )
        return torch.autograd.grad(slope.square().sum(), key)

    with pytest.raises(RuntimeError):
        slope_of_slope()
    with plain_attention():
        slope_of_slope()


def test_function_transforms_and_forward_derivatives_go_step_by_step():
    core = core_for(qf.ClippedSoftmax(gamma=-0.01), 2)
    query, key, value = (torch.randn(3, 1, 2, 9, WIDTH, dtype=torch.float64) for _ in range(3))

    def attend(*tensors):
        return core(*tensors, options=NO_WEIGHTS)[0]

    mapped = torch.vmap(attend)(query, key, value)
    torch.testing.assert_close(mapped, torch.stack([attend(*each) for each in zip(query, key, value, strict=True)]))
    _, slope = torch.func.jvp(lambda x: attend(x, key[0], value[0]), (query[0],), (torch.ones_like(query[0]),))
    step = 1e-6
    difference = attend(query[0] + step, key[0], value[0]) - attend(query[0] - step, key[0], value[0])
    torch.testing.assert_close(slope, difference / (2 * step), rtol=1e-5, atol=1e-7)
    with forward_ad.dual_level():
        dual = attend(forward_ad.make_dual(query[0], torch.ones_like(query[0])), key[0], value[0])
        torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, slope)


@pytest.mark.parametrize(
    "shapes",
    [
        {"mask": (1, 1, 20, 12)},  # more rows than queries
        {"mask": (1, 5, 9, 12)},  # other heads
        {"value": (1, 2, 13, WIDTH)},  # more values than keys
        {"mask": (2, 1, 9, 12)},  # a batch of its own
        {"key": (2, 2, 12, WIDTH), "value": (2, 2, 12, WIDTH)},
    ],
    ids=["rows", "heads", "values", "batch", "keys"],
)
def test_shapes_that_do_not_fit_are_not_cut_to_fit(shapes):
    sizes = {"query": (1, 2, 9, WIDTH), "key": (1, 2, 12, WIDTH), "value": (1, 2, 12, WIDTH)} | shapes
    tensors = [torch.randn(sizes[name]) for name in ("query", "key", "value")]
    mask = torch.zeros(sizes["mask"]) if "mask" in sizes else None
    core = core_for(qf.ClippedSoftmax(), 2).float()

    def attempt(options):
        try:
            return core(*tensors, mask, options=options)[0]
        except RuntimeError as error:
            return type(error)

    found, expected = attempt(NO_WEIGHTS), attempt(CoreOptions())
    assert type(found) is type(expected)
    if isinstance(found, torch.Tensor):
        torch.testing.assert_close(found, expected)


def test_tensors_without_memory_of_their_own_go_step_by_step():
    core = core_for(qf.ClippedSoftmax(gamma=-0.01), 2).float()
    tensors = [torch.randn(1, 2, 9, WIDTH) for _ in range(3)]
    traced = make_fx(lambda *given_tensors: core(*given_tensors, options=NO_WEIGHTS)[0])(*tensors)
    others = [torch.randn(1, 2, 9, WIDTH) for _ in range(3)]
    torch.testing.assert_close(traced(*others), core(*others, options=NO_WEIGHTS)[0])
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(x) for x in tensors]
        assert core(*fake, options=NO_WEIGHTS)[0].shape == (1, 9, 2, WIDTH)
    with torch.device("meta"):
        assert core(*tensors, options=NO_WEIGHTS)[0].isfinite().all()
    meta = [x.to("meta") for x in tensors]
    assert core(*meta, torch.ones(9, 9, dtype=torch.bool, device="meta"), options=NO_WEIGHTS)[0].shape == (
        1,
        9,
        2,
        WIDTH,
    )


def test_a_mask_that_is_written_into_before_the_backward_pass_is_noticed():
    tensors = [torch.randn(1, 2, 9, WIDTH, requires_grad=True) for _ in range(3)]
    mask = torch.ones(1, 1, 9, 9, dtype=torch.bool).tril()
    context = clipped_attention(*tensors, Clipping(-0.01), scaling=1.0, mask=mask)
    mask.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        context.sum().backward()


def test_dropping_everything_leaves_nothing():
    tensors = [torch.randn(1, 2, 9, WIDTH, requires_grad=True) for _ in range(3)]
    context = clipped_attention(*tensors, Clipping(-0.01, dropout=1.0), scaling=1.0)
    assert (context == 0).all()
    assert all((x == 0).all() for x in torch.autograd.grad(context.sum(), tensors))


def test_dropout_is_the_same_for_any_number_of_threads_and_in_a_checkpoint():
    tensors = [torch.randn(2, 4, 9, WIDTH, requires_grad=True) for _ in range(3)]

    def attend(*given_tensors):
        return clipped_attention(*given_tensors, Clipping(-0.01, dropout=0.3), scaling=1.0)

    def gradients(call):
        torch.manual_seed(3)
        context = call(*tensors)
        return [context, *torch.autograd.grad(context.square().sum(), tensors)]

    expected, threads = gradients(attend), torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        for one, other in zip(gradients(attend), expected, strict=True):
            torch.testing.assert_close(one, other)
    finally:
        torch.set_num_threads(threads)
    again = gradients(lambda *given_tensors: checkpoint(attend, *given_tensors, use_reentrant=False))
    for one, other in zip(again, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_a_gamma_that_learns_gets_its_gradient():
    class Learned(ClippedSoftmaxNormalizer):
        def __init__(self):
            super().__init__(qf.ClippedSoftmax(gamma=-0.01))
            self.low = nn.Parameter(torch.tensor(-0.01, dtype=torch.float64))

        def gamma(self, n_keys, dtype):
            return self.low

    core = core_for(qf.ClippedSoftmax(gamma=-0.01), 2)
    core.normalizer = Learned()
    core(*(torch.randn(1, 2, 9, WIDTH, dtype=torch.float64) for _ in range(3)), options=NO_WEIGHTS)[0].sum().backward()
    assert core.normalizer.low.grad is not None


def test_a_forward_of_one_normalizer_alone_is_not_passed_by():
    core = core_for(qf.Softmax(), 1)
    tensors = [torch.randn(1, 1, 5, WIDTH, dtype=torch.float64) for _ in range(3)]
    whole, _ = core(*tensors, options=NO_WEIGHTS)
    usual = core.normalizer.forward
    core.normalizer.forward = lambda scores, visible=None: usual(scores, visible) / 2
    torch.testing.assert_close(core(*tensors, options=NO_WEIGHTS)[0], whole / 2)


def test_keys_that_no_row_sees_are_not_computed(monkeypatch):
    """A causal mask halves the work: products are as wide as what their rows can see."""
    widths = []
    product = torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda a, b, **how: widths.append(a.shape[-1]) or product(a, b, **how))
    tensors = [torch.randn(1, 1, 16, WIDTH) for _ in range(3)]
    visible = torch.ones(16, 16, dtype=torch.bool).tril()
    clipped_attention(*tensors, Clipping(-0.1), scaling=1.0, mask=visible)
    assert widths == [4, 8, 12, 16]


def test_warm_up_moves_the_fused_way_too():
    normalizer = qf.ClippedSoftmax(gamma=-0.5, warmup_steps=4).build(HeadGeometry(1, WIDTH, WIDTH))
    assert isinstance(normalizer, ClippedSoftmaxNormalizer)
    tensors = [torch.randn(1, 1, 6, WIDTH) for _ in range(3)]

    def attend():
        return normalizer.attend(*tensors, None, FusedOptions(scaling=1.0))

    start = attend()
    torch.testing.assert_close(start, nn.functional.scaled_dot_product_attention(*tensors, scale=1.0))
    normalizer.advance_(2)
    assert not torch.allclose(attend(), start)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("kind", ["boolean", "additive", "with a position bias", "causal", "blind row"])
def test_a_hidden_key_whose_score_overflows_float16_is_hidden_all_the_same(normalizer, kind):
    """Its score is added up in float32, where 80,000 is more than float16's minimum takes away."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 2, 6, WIDTH, generator=generator).half() for _ in range(3))
    query[..., 0], key[..., 3, 0] = 250.0, 900.0
    scale = WIDTH**-0.5
    assert float((query.float() @ key.float().transpose(-1, -2))[..., 3].min()) * scale > 65504
    visible = (torch.arange(6) != 3).expand(1, 1, 6, 6).clone()
    if kind == "causal":
        visible = torch.tril(torch.ones(6, 6, dtype=torch.bool))[None, None] & visible
    if kind == "blind row":
        visible[..., 2, :] = False
    additive = torch.zeros(1, 1, 6, 6).half().masked_fill(~visible, torch.finfo(torch.float16).min)
    mask = visible if kind == "boolean" else additive
    position = torch.full((1, 2, 6, 6), 0.25).half() if kind == "with a position bias" else None
    core = (
        AttentionCore(qf.AttentionSpec(normalizer=NORMALIZERS[normalizer]), HeadGeometry(2, 2 * WIDTH, WIDTH))
        .half()
        .eval()
    )
    changed = value.clone()
    changed[..., 3, :] = 1000.0
    ours, other = (core(query, key, some, mask, position, NO_WEIGHTS)[0] for some in (value, changed))
    assert torch.equal(ours, other)
    with plain_attention():
        expected, _ = core(query, key, value, mask, position, NO_WEIGHTS)
    assert torch.allclose(ours.float(), expected.float(), atol=2e-2)
