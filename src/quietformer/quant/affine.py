"""Uniform affine quantization, the paper's equation (1): clip(round(x / s) + z, 0, 2^b - 1), as pure functions.

One convention everywhere: integers are unsigned, and the zero point is one of them. A symmetric grid has the zero point
2^(b-1), so signed storage holds the same integers minus 2^(b-1).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

MIN_BITS, MAX_BITS = 2, 16

SMALLEST_SCALE = float(torch.finfo(torch.float32).tiny)
"""A scale below this is subnormal: processors may flush it to zero, and dividing by it overflows."""


def levels(bits: int) -> int:
    """The largest integer of the grid."""
    return (1 << bits) - 1


def qparams(lo: Tensor, hi: Tensor, *, bits: int, symmetric: bool) -> tuple[Tensor, Tensor]:
    """Scale (float32) and zero point (int32) of the grid that covers [lo, hi] and zero.

    Computed in float64, so that the ends of the range are as exact as float32 allows.
    """
    lo, hi = lo.double().clamp(max=0.0), hi.double().clamp(min=0.0)
    if symmetric:
        half = 2 ** (bits - 1)
        scale = torch.maximum(-lo, hi) / (half - 1)
        zero_point = torch.full_like(scale, half)
    else:
        scale = (hi - lo) / levels(bits)
        zero_point = torch.round(-lo / _usable(scale)).clamp(0, levels(bits))
    return _usable(scale).float(), zero_point.to(torch.int32)


def _usable(scale: Tensor) -> Tensor:
    """The scale, or 1 for an empty range: it holds only zero, which every scale represents."""
    return torch.where(scale > 0, scale.clamp(min=SMALLEST_SCALE), torch.ones_like(scale))


def quantize(x: Tensor, scale: Tensor, zero_point: Tensor, *, bits: int, axis: int | None = None) -> Tensor:
    """The integers, as int32; ties to even, and division instead of multiplication by 1/s, as in ONNX Runtime."""
    scale, zero_point = along(scale, x.dim(), axis), along(zero_point, x.dim(), axis)
    return (torch.round(x.float() / scale) + zero_point).clamp(0, levels(bits)).to(torch.int32)


def dequantize(q: Tensor, scale: Tensor, zero_point: Tensor, *, axis: int | None = None) -> Tensor:
    """(q - z) s in float32."""
    return (q - along(zero_point, q.dim(), axis)).float() * along(scale, q.dim(), axis)


def fake_quantize(x: Tensor, scale: Tensor, zero_point: Tensor, *, bits: int, axis: int | None = None) -> Tensor:
    """x quantized and dequantized, in x's dtype; gradients pass straight through inside the range."""
    scale = along(scale, x.dim(), axis)
    zero_point = along(zero_point, x.dim(), axis)
    low, high = -zero_point.float(), levels(bits) - zero_point.float()
    fake: Tensor = _StraightThrough.apply(x, scale, low, high)  # type: ignore[no-untyped-call]
    return fake


def token_scales(x: Tensor, *, bits: int) -> Tensor:
    """One scale for each row of features (..., 1): the largest magnitude of the row becomes the largest integer."""
    reach = x.detach().float().abs().amax(-1, keepdim=True)
    return qparams(-reach, reach, bits=bits, symmetric=True)[0]


def fake_quantize_tokens(x: Tensor, *, bits: int) -> Tensor:
    """x on the symmetric grids of its tokens, each a row of the last dimension; nothing is clipped."""
    scale = token_scales(x, bits=bits)
    return fake_quantize(x, scale, torch.full_like(scale, 2 ** (bits - 1), dtype=torch.int32), bits=bits)


class _StraightThrough(torch.autograd.Function):
    """clip(round(x/s), -z, 2^b - 1 - z) s: equation (1) with the zero point moved into the bounds, four passes in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
        # float32 would add and subtract the zero point, an integer below 2^16, exactly, so leaving it out changes nothing.
        steps = torch.div(x.float(), scale).round_()
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward((steps >= low) & (steps <= high))
        return torch.clamp(steps, low, high, out=steps).mul_(scale).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, None]:
        (inside,) = ctx.saved_tensors
        return grad * inside, None, None, None


def along(parameter: Tensor, dimensions: int, axis: int | None) -> Tensor:
    """One parameter per channel, shaped to broadcast over a tensor of this many dimensions."""
    if axis is None:
        return parameter
    shape = [1] * dimensions
    shape[axis] = -1
    return parameter.view(shape)
