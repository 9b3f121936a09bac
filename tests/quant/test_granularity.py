"""Scales per token: the formula, which tensors have them, saving, gradients, and what reports say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import quietformer as qf
from quietformer.config.quantization import QuantizedSpec
from quietformer.config.recorded_changes import changes_of
from quietformer.errors import CheckpointError, SpecError
from quietformer.quant.affine import MAX_BITS, MIN_BITS, fake_quantize_tokens, token_scales
from quietformer.quant.calibration import full_precision, plan_quantization, set_mode_
from quietformer.quant.insertion import place_, quantizers
from quietformer.quant.quantizer import Grid
from quietformer.quant.sensitivity import noise_by_tensor
from tests.tiny_models import build, inputs, logits

values = st.floats(-(2.0**100), 2.0**100, width=32)
tensors = st.tuples(st.integers(1, 4), st.integers(1, 9)).flatmap(
    lambda shape: arrays(np.float32, shape, elements=values)
)


def by_formula(x: np.ndarray, bits: int) -> np.ndarray:
    """Every token on its own grid, in float64: the scale is the largest magnitude over 2^(b-1) - 1."""
    scale = np.abs(x.astype(np.float64)).max(-1, keepdims=True) / (2 ** (bits - 1) - 1)
    scale = np.where(scale > 0, np.maximum(scale, np.finfo(np.float32).tiny), 1.0).astype(np.float32)
    steps = np.rint((x / scale).astype(np.float32))
    return steps.astype(np.float64) * scale


@given(tensors, st.integers(MIN_BITS, MAX_BITS))
@settings(deadline=None)
def test_tokens_are_rounded_as_the_formula_says(x, bits):
    got = fake_quantize_tokens(torch.from_numpy(x), bits=bits).numpy()
    np.testing.assert_allclose(got, by_formula(x, bits), rtol=1e-6)


@given(tensors, st.integers(MIN_BITS, MAX_BITS))
@settings(deadline=None)
def test_no_value_moves_by_more_than_half_a_step_of_its_token(x, bits):
    given_ = torch.from_numpy(x)
    error = (fake_quantize_tokens(given_, bits=bits).double() - given_.double()).abs()
    assert bool((error <= token_scales(given_, bits=bits).double() * (0.5 + 1e-4)).all())


@given(tensors, st.integers(-20, 20))
@settings(deadline=None)
def test_a_token_does_not_see_the_others(x, power):
    """One token a power of two larger: it is rounded to as many times its values, and the others stay."""
    x = np.where(np.abs(x) < 1e-20, 0, x).astype(np.float32)
    alone = fake_quantize_tokens(torch.from_numpy(x), bits=8)
    x[0] *= 2.0**power
    together = fake_quantize_tokens(torch.from_numpy(x), bits=8)
    assert torch.equal(together[1:], alone[1:])
    torch.testing.assert_close(together[0], alone[0] * 2.0**power, rtol=1e-6, atol=0)


def test_gradients_pass_straight_through():
    x = torch.randn(5, 7, requires_grad=True)
    factor = torch.randn(5, 7)
    (fake_quantize_tokens(x, bits=4) * factor).sum().backward()
    assert torch.equal(x.grad, factor)


@pytest.mark.parametrize("name", ["bert", "opt", "llama", "gpt2", "vit"])
@pytest.mark.parametrize("placement", ["linear", "matmul", "paper"])
def test_what_linear_layers_read_has_scales_per_token_and_attention_has_not(name, placement):
    model = build(name)
    plan = plan_quantization(model, qf.QuantSpec(placement=placement, granularity="token"), inputs(name))
    grids = {site.name: site.grid for site in plan.sites if site.role == "activation"}
    inside = {site for site in grids if site.endswith((":query", ":key", ":value", ":scores", ":probabilities"))}
    assert not any(grids[site].token for site in inside)
    assert not any(site.endswith(":context") for site in grids)  # the output projection reads it as one row a token
    linear = {n for n, module in model.named_modules() if type(module).__name__ in ("Linear", "Conv1D")}
    read = {site for site in grids if site.endswith(":input") and site.partition(":")[0] in linear}
    assert read
    assert all(grids[site].token and grids[site].symmetric for site in read)
    static = {site for site in set(grids) - inside if not grids[site].token}
    if name == "vit":  # patches come out of a convolution with their channels first, and so do pixels
        assert all("embeddings" in site for site in static)
    else:
        assert not static


@pytest.fixture(scope="module")
def per_token():
    model, batch = build("bert"), inputs("bert")
    plan = qf.quantize_(model, qf.QuantSpec(placement="matmul", granularity="token", per_channel=True), batch)
    qf.calibrate_(model, [batch])
    return model, plan, batch


def test_a_linear_layer_reads_each_token_on_its_own_grid(per_token):
    model, _, batch = per_token
    dense = model.bert.encoder.layer[0].output.dense
    with full_precision(model), torch.no_grad():
        seen = []
        handle = dense.register_forward_pre_hook(lambda module, args: seen.append(args[0]), prepend=True)
        model(**batch)
        set_mode_(model, "quantize", ["bert.encoder.layer.0.output.dense:input"])
        rounded = []
        after = dense.register_forward_hook(lambda module, args, output: rounded.append(output))
        model(**batch)
        handle.remove()
        after.remove()
    expected = torch.from_numpy(by_formula(seen[0].numpy(), 8)) @ dense.weight.double().T + dense.bias.double()
    torch.testing.assert_close(rounded[0].double(), expected, rtol=1e-4, atol=1e-5)


def test_the_others_are_calibrated_on_what_they_get_in_full_precision(per_token):
    """Scales per token must not round what calibration sees, the second time either."""
    model, _, batch = per_token
    before = {site: q.scale.clone() for site, q in quantizers(model).items() if not q.grid.token}
    assert any(not site.endswith(":weight") for site in before)
    qf.calibrate_(model, [batch])
    assert all(torch.equal(quantizers(model)[site].scale, scale) for site, scale in before.items())


def test_a_failed_calibration_leaves_every_mode_as_it_was(per_token):
    model, _, batch = per_token
    expected = logits(model, batch)
    with pytest.raises(qf.QuietformerError, match="no batches"):
        qf.calibrate_(model, [])
    assert torch.equal(logits(model, batch), expected)


def test_a_saved_model_computes_the_same(per_token, tmp_path):
    model, _, batch = per_token
    qf.save(model, tmp_path / "saved")
    again = qf.load(tmp_path / "saved")
    assert changes_of(again).quantized.spec.granularity == "token"
    assert torch.equal(logits(again, batch), logits(model, batch))


def test_training_reaches_the_weights_before_a_token_grid(per_token):
    model, _, batch = per_token
    model.zero_grad()
    model(**batch).logits.square().mean().backward()
    weight = model.bert.encoder.layer[0].attention.self.query.weight
    assert weight.grad is not None
    assert float(weight.grad.abs().max()) > 0


def test_noise_by_tensor_shows_how_far_all_tokens_reach(per_token):
    model, plan, batch = per_token
    row = next(row for row in noise_by_tensor(model, plan, [batch]).rows if row.grid == "s8@token")
    assert row.lo < 0 < row.hi
    assert row.sqnr_db > 30  # 8 bits for every token


def test_a_default_is_written_as_earlier_releases_wrote_it():
    assert "granularity" not in qf.QuantSpec().to_dict()
    spec = qf.QuantSpec(granularity="token")
    assert qf.QuantSpec(**spec.to_dict()) == spec
    assert spec.label == "W8A8 per token"


@pytest.mark.parametrize("code", ["s8", "u4", "s8@0", "s8@token", "s16@token"])
def test_grids_are_read_as_they_are_written(code):
    assert str(Grid.parse(code)) == code


@pytest.mark.parametrize("code", ["u8@token", "s8@tokens", "s1@token"])
def test_a_grid_that_cannot_be_is_refused(code):
    with pytest.raises(SpecError, match=code):
        Grid.parse(code)


def test_a_weight_has_no_tokens():
    model = build("bert")
    sites = {"bert.encoder.layer.0.output.dense:weight": "s8@token"}
    with pytest.raises(CheckpointError, match="has no tokens"):
        place_(model, QuantizedSpec(spec=qf.QuantSpec(), sites=sites))
