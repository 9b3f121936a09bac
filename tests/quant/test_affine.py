"""The arithmetic against onnxruntime's own QuantizeLinear and DequantizeLinear, bit for bit, and its own promises."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from quietformer.quant.affine import MAX_BITS, MIN_BITS, dequantize, fake_quantize, levels, qparams, quantize

OPSET = 21
UNSIGNED = {8: np.uint8, 16: np.uint16}
SIGNED = {8: np.int8, 16: np.int16}
every_width = pytest.mark.parametrize("bits", range(MIN_BITS, MAX_BITS + 1))
both_grids = pytest.mark.parametrize("symmetric", [False, True])


@cache
def session(operator: str, integer: type, axis: int | None) -> onnxruntime.InferenceSession:
    """One node whose scale and zero point are inputs, so that one session serves every example."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(integer))
    value, result = (TensorProto.FLOAT, kind) if operator == "QuantizeLinear" else (kind, TensorProto.FLOAT)
    rank, parameter = (1, []) if axis is None else (2, [None])
    node = helper.make_node(operator, ["x", "scale", "zero"], ["y"], **({} if axis is None else {"axis": axis}))
    graph = helper.make_graph(
        [node],
        operator,
        [
            helper.make_tensor_value_info("x", value, [None] * rank),
            helper.make_tensor_value_info("scale", TensorProto.FLOAT, parameter),
            helper.make_tensor_value_info("zero", kind, parameter),
        ],
        [helper.make_tensor_value_info("y", result, [None] * rank)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def peer(operator: str, x: np.ndarray, scale: np.ndarray, zero: np.ndarray, axis: int | None = None) -> np.ndarray:
    feed = {"x": x, "scale": np.asarray(scale), "zero": np.asarray(zero)}
    return session(operator, zero.dtype.type, axis).run(None, feed)[0]


scales = st.one_of(
    st.floats(-30, 30, width=32).map(lambda power: np.float32(10.0**power)),
    st.integers(-40, 40).map(lambda power: np.float32(2.0**power)),  # divisions by these are exact: ties are ties
)


@st.composite
def grids(draw, bits: int, channels: int | None = None):
    """Scales, zero points, and for each channel values on levels, halfway between them, near them and anywhere."""
    count = channels or 1
    scale = np.array([draw(scales) for _ in range(count)], np.float32)
    zero = np.array([draw(st.integers(0, levels(bits))) for _ in range(count)])
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    k = rng.integers(-levels(bits) - 5, levels(bits) + 5, (count, 64)).astype(np.float64)
    ties = ((k + 0.5) * scale[:, None]).astype(np.float32)
    nudged = np.nextafter(ties, np.float32(np.inf) * rng.choice([-1, 1], ties.shape).astype(np.float32))
    on_levels = (k * scale[:, None]).astype(np.float32)
    anywhere = (rng.normal(0, levels(bits), (count, 64)) * scale[:, None]).astype(np.float32)
    far = (rng.choice([-1, 1], (count, 8)) * 10.0 ** rng.uniform(-37, 37, (count, 8))).astype(np.float32)
    x = np.concatenate([ties, nudged, on_levels, anywhere, far, np.zeros((count, 1), np.float32)], axis=1)
    return (x, scale, zero) if channels else (x[0], scale[0], zero[0])


def tensors(*arrays: np.ndarray) -> list[torch.Tensor]:
    x, scale, zero = arrays
    return [torch.from_numpy(x), torch.tensor(scale), torch.tensor(zero, dtype=torch.int32)]


@pytest.mark.parametrize("bits", [8, 16])
@settings(deadline=None)
@given(data=st.data())
def test_unsigned_integers_and_what_they_stand_for_equal_onnxruntimes(bits, data):
    x, scale, zero = data.draw(grids(bits))
    q = quantize(*tensors(x, scale, zero), bits=bits)
    theirs = peer("QuantizeLinear", x, scale, zero.astype(UNSIGNED[bits]))
    np.testing.assert_array_equal(q.numpy(), theirs)
    back = dequantize(q, *tensors(x, scale, zero)[1:])
    np.testing.assert_array_equal(back.numpy(), peer("DequantizeLinear", theirs, scale, zero.astype(UNSIGNED[bits])))


@pytest.mark.parametrize("bits", [8, 16])
@settings(deadline=None)
@given(data=st.data())
def test_a_symmetric_grid_is_onnxruntimes_signed_one_shifted(bits, data):
    x, scale, _ = data.draw(grids(bits))
    half = 2 ** (bits - 1)
    q = quantize(*tensors(x, scale, half), bits=bits)
    theirs = peer("QuantizeLinear", x, scale, np.array(0, SIGNED[bits]))
    np.testing.assert_array_equal(q.numpy() - half, theirs)
    back = dequantize(q, *tensors(x, scale, half)[1:])
    np.testing.assert_array_equal(back.numpy(), peer("DequantizeLinear", theirs, scale, np.array(0, SIGNED[bits])))


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("axis", [0, 1])
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_a_scale_a_channel_equals_onnxruntimes_per_axis(bits, axis, data):
    x, scale, zero = data.draw(grids(bits, channels=3))
    x = np.ascontiguousarray(np.moveaxis(x, 0, axis))
    q = quantize(*tensors(x, scale, zero), bits=bits, axis=axis)
    theirs = peer("QuantizeLinear", x, scale, zero.astype(UNSIGNED[bits]), axis)
    np.testing.assert_array_equal(q.numpy(), theirs)
    back = dequantize(q, *tensors(x, scale, zero)[1:], axis=axis)
    expected = peer("DequantizeLinear", theirs, scale, zero.astype(UNSIGNED[bits]), axis)
    np.testing.assert_array_equal(back.numpy(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@settings(deadline=None)
@given(data=st.data(), bits=st.integers(MIN_BITS, MAX_BITS), channels=st.sampled_from([None, 3]))
def test_fake_quantizing_is_quantizing_and_back(dtype, data, bits, channels):
    x, scale, zero = tensors(*data.draw(grids(bits, channels)))
    x = x.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max).to(dtype)
    axis = None if channels is None else 0
    fake = fake_quantize(x, scale, zero, bits=bits, axis=axis)
    assert fake.dtype is dtype
    q = quantize(x, scale, zero, bits=bits, axis=axis)
    assert torch.equal(fake, dequantize(q, scale, zero, axis=axis).to(dtype))
    assert 0 <= int(q.min()) <= int(q.max()) <= levels(bits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@both_grids
@every_width
def test_gradients_are_one_inside_the_range_and_zero_outside(bits, symmetric, dtype):
    scale, zero = qparams(torch.tensor(-1.0), torch.tensor(2.0), bits=bits, symmetric=symmetric)
    lowest, highest = -float(zero) * float(scale), (levels(bits) - float(zero)) * float(scale)
    shares = torch.linspace(0.02, 0.98, 20)
    inside = lowest + shares * (highest - lowest)
    beyond = float(scale) + shares * 3
    x = torch.cat([inside, highest + beyond, lowest - beyond]).to(dtype).requires_grad_()
    upstream = torch.linspace(-2, 2, len(x)).to(dtype)
    fake_quantize(x, scale, zero, bits=bits).backward(upstream)
    assert x.grad.dtype is dtype
    assert torch.equal(x.grad[:20], upstream[:20])
    assert not x.grad[20:].any()


def test_gradients_of_channels_follow_each_channels_range():
    x = torch.tensor([[0.9, 5.0], [0.9, 5.0]], requires_grad=True)
    scale, zero = qparams(torch.tensor([-1.0, -10.0]), torch.tensor([1.0, 10.0]), bits=8, symmetric=True)
    fake_quantize(x, scale, zero, bits=8, axis=0).sum().backward()
    assert x.grad.tolist() == [[1.0, 0.0], [1.0, 1.0]]


def test_a_graph_that_needs_no_gradient_keeps_nothing():
    x = torch.randn(10)
    assert not fake_quantize(x, *qparams(x.min(), x.max(), bits=8, symmetric=False), bits=8).requires_grad


ends = st.one_of(
    st.just(0.0),
    st.floats(-37, 38).map(lambda power: 10.0**power),
    st.sampled_from([1e-45, 1e-40, 1e-38, 1e30, float(np.finfo(np.float32).max)]),
)


@settings(deadline=None, max_examples=300)
@given(below=ends, above=ends, bits=st.integers(MIN_BITS, MAX_BITS), symmetric=st.booleans())
def test_any_range_gives_a_grid_that_holds_zero_and_covers_it_to_within_a_step(below, above, bits, symmetric):
    lo, hi = torch.tensor(-below), torch.tensor(above)
    scale, zero = qparams(lo, hi, bits=bits, symmetric=symmetric)
    assert scale.dtype is torch.float32
    assert zero.dtype is torch.int32
    assert torch.isfinite(scale)
    assert scale >= torch.finfo(torch.float32).tiny
    assert 0 <= int(zero) <= levels(bits)
    assert int(quantize(torch.zeros(()), scale, zero, bits=bits)) == int(zero)
    assert float(dequantize(zero, scale, zero)) == 0.0
    lowest, highest = (np.array([0, levels(bits)]) - float(zero)) * float(scale)
    # Half a step for the rounding of the zero point, and float32's last digit of the scale at the far end.
    slack = float(scale) * 0.501 + max(below, above) * 2**-23 if below or above else 0.0
    if float(scale) == torch.finfo(torch.float32).tiny:
        slack = float(scale)
    assert lowest <= float(lo) + slack
    assert highest >= float(hi) - slack


@every_width
def test_a_symmetric_grid_has_its_zero_in_the_middle_and_reaches_the_larger_end(bits):
    lo, hi = torch.tensor([-3.0, -1.0, 0.0]), torch.tensor([1.0, 3.0, 3.0])
    scale, zero = qparams(lo, hi, bits=bits, symmetric=True)
    assert zero.tolist() == [2 ** (bits - 1)] * 3
    assert (scale * (2 ** (bits - 1) - 1)).tolist() == pytest.approx([3.0] * 3, rel=1e-6)


@both_grids
@every_width
def test_channels_get_what_each_would_get_alone(bits, symmetric):
    lo = torch.tensor([0.0, -1.0, -1e30, -1e-30, -2.0])
    hi = torch.tensor([0.0, 2.0, 1e30, 1e-42, 0.0])
    scale, zero = qparams(lo, hi, bits=bits, symmetric=symmetric)
    alone = [qparams(a, b, bits=bits, symmetric=symmetric) for a, b in zip(lo, hi, strict=True)]
    assert torch.equal(scale, torch.stack([one for one, _ in alone]))
    assert torch.equal(zero, torch.stack([one for _, one in alone]))


def test_a_range_that_leaves_zero_out_is_widened_to_it():
    for lo, hi in [(1.0, 2.0), (-2.0, -1.0)]:
        scale, zero = qparams(torch.tensor(lo), torch.tensor(hi), bits=8, symmetric=False)
        assert float(scale) == pytest.approx(2 / 255)
        assert int(zero) == (0 if lo > 0 else 255)
