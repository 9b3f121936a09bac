"""From the tensors of an attention call to launches of the Triton kernels."""

# B batch, H heads, G key/value heads, Q queries, K keys, D features per head

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from quietformer.attention.kernels import triton_backward as backward
from quietformer.attention.kernels import triton_forward as forward
from quietformer.attention.kernels.triton_tiles import Form, Given, View


class Call(NamedTuple):
    """The arguments of the operator, in the order of its schema."""

    query: Tensor  # (B, H, Q, D)
    key: Tensor  # (B, G, K, D)
    value: Tensor  # (B, G, K, D)
    low: Tensor  # this and all below broadcast over (B, H, Q, K)
    sink: Tensor | None  # (H,)
    mask: Tensor | None
    bias: Tensor | None
    padding: Tensor | None  # (B, K)
    gate: Tensor | None  # (B, Q, H, D or 1)
    seed: Tensor | None
    kind: str
    numbers: list[float]  # scaling, zeta, dropout
    span: list[int]  # of a causal mask: the offset, then the window if there is one

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """(B, H, Q, K)."""
        return self.query.shape[0], self.query.shape[1], self.query.shape[2], self.key.shape[2]


@dataclass(frozen=True)
class Tile:
    """The queries and keys of one tile, and how a GPU computes it."""

    queries: int
    keys: int
    warps: int
    stages: int


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on tensors in main memory: for tests, and very slow."""
    return bool(triton.knobs.runtime.interpret)


def tile_for(kernel: str, dtype: torch.dtype, width: int) -> Tile:
    """The tile of a kernel: of those tried, the fastest by the estimate of experiments/speed/triton_compile.py."""
    if dtype == torch.float32 or width > 128:
        return _SMALL[kernel]
    return _NARROW[kernel] if width <= 64 else _WIDE[kernel]


_NARROW = {
    "row_statistics": Tile(128, 64, 4, 2),
    "context_of_rows": Tile(128, 64, 4, 2),
    "row_slopes": Tile(64, 64, 4, 2),
    "gradients": Tile(64, 64, 4, 2),
}
_WIDE = {
    "row_statistics": Tile(128, 64, 8, 2),
    "context_of_rows": Tile(128, 64, 8, 2),
    "row_slopes": Tile(128, 64, 8, 2),
    "gradients": Tile(64, 64, 8, 2),
}
_SMALL = {
    "row_statistics": Tile(64, 32, 8, 2),
    "context_of_rows": Tile(64, 32, 8, 2),
    "row_slopes": Tile(32, 32, 8, 2),
    "gradients": Tile(32, 32, 8, 1),
}


def run_forward(call: Call) -> tuple[Tensor, Tensor]:
    """The context (B, Q, H, D) and L (B, H, Q), the logarithms of the denominators in base 2."""
    n_batch, n_heads, n_queries, _ = call.sizes
    context = call.query.new_empty(n_batch, n_queries, n_heads, call.value.shape[-1])
    lse = call.query.new_zeros((n_batch, n_heads, n_queries), dtype=torch.float32)
    if context.numel():
        given = _given(call)
        with torch.cuda.device_of(call.query):  # type: ignore[no-untyped-call]
            if call.kind == "clipped":
                form, how = _form(call, "row_statistics")
                forward.row_statistics[_row_programs(call, form)](given, _rows(lse), form, **how)
            form, how = _form(call, "context_of_rows")
            forward.context_of_rows[_row_programs(call, form)](given, _rows(lse), _heads_first(context), form, **how)
    return context, lse


def run_backward(call: Call, results: tuple[Tensor, Tensor, Tensor], wanted: list[bool]) -> list[Tensor]:
    """The gradients of query, key, value, sink, bias and gate, from the context, L and the context's gradient.

    `wanted` is about the last three; one that is not wanted is an empty tensor.
    """
    context, lse, grad = results
    found = [torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (call.query, call.key, call.value)]
    grad_bias = _accumulator(call.bias if wanted[1] else None)
    grad_gate = _accumulator(call.gate if wanted[2] else None)
    slope = torch.zeros_like(lse)
    if context.numel():
        grad = grad.contiguous()
        ungated = grad if call.gate is None else torch.empty_like(grad)
        slopes = backward.Slopes(
            *map(_heads_first, (context, grad)), *map(_rows, (lse, slope)), *map(_heads_first, (ungated, grad_gate))
        )
        out = backward.Gradients(_heads_first(ungated), _rows(lse), _rows(slope), *map(_view, (*found, grad_bias)))
        _launch_backward(call, slopes, out)
    grad_sink = None
    if wanted[0] and call.sink is not None:
        sink_H1 = call.sink.float()[:, None]
        grad_sink = -(torch.exp2(sink_H1 / math.log(2) - lse) * slope).sum((0, 2))  # the sink's probability falls
    others = ((grad_sink, call.sink), (grad_bias, call.bias), (grad_gate, call.gate))
    return found + [grad.new_empty(0) if x is None or like is None else x.to(like.dtype) for x, like in others]


def _launch_backward(call: Call, slopes: backward.Slopes, out: backward.Gradients) -> None:
    given = _given(call)
    with torch.cuda.device_of(call.query):  # type: ignore[no-untyped-call]
        if call.kind != "sigmoid" or call.gate is not None:
            form, how = _form(call, "row_slopes")
            backward.row_slopes[_row_programs(call, form)](given, slopes, form, **how)
        form, how = _form(call, "gradients")
        key_blocks = call.key.shape[0] * call.key.shape[1] * triton.cdiv(call.key.shape[2], form.block_keys)
        backward.gradients[(key_blocks + _row_programs(call, form)[0],)](given, out, form, **how)


def _row_programs(call: Call, form: Form) -> tuple[int]:
    """How many programs take a block of queries each."""
    n_batch, n_heads, n_queries, _ = call.sizes
    return (n_batch * n_heads * triton.cdiv(n_queries, form.block_queries),)


def _given(call: Call) -> Given:
    n_batch, n_heads, n_queries, n_keys = call.sizes
    scaling, zeta, dropout = call.numbers
    offset, window = (*call.span, 0, 0)[:2]
    query, key, value = (_view(x if x.stride(-1) == 1 else x.contiguous()) for x in (call.query, call.key, call.value))
    return Given(
        query, key, value,
        low=_view(call.low),
        sink=View(None) if call.sink is None else View(call.sink, head=call.sink.stride(0)),
        mask=_view(_bytes(call.mask)),
        bias=_view(call.bias),
        padding=_view(None if call.padding is None else _bytes(call.padding)[:, None, None]),
        gate=_heads_first(call.gate),
        seed=View(call.seed),
        batches=n_batch, heads=n_heads, groups=call.key.shape[1], queries=n_queries, keys=n_keys,
        scaling=scaling, zeta=zeta, dropout=dropout, kept=1 / (1 - dropout) if dropout < 1 else 0.0,
        offset=offset, window=window,
    )  # fmt: skip


def _form(call: Call, kernel: str) -> tuple[Form, dict[str, int]]:
    """What a kernel is compiled for, and how it is launched."""
    width, value_width = call.query.shape[-1], call.value.shape[-1]
    tile = tile_for(kernel, call.query.dtype, max(width, value_width))
    form = Form(
        kind=call.kind, width=width, value_width=value_width,
        causal=bool(call.span), window=len(call.span) > 1, dropout=call.numbers[2] > 0,
        additive=call.mask is not None and call.mask.dtype != torch.bool,
        whole_keys=call.key.shape[2] % tile.keys == 0,
        gate_width=1 if call.gate is None else call.gate.shape[-1],
        precision="ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32",
        interpreted=interpreted(),
        block_queries=tile.queries, block_keys=tile.keys,
        block_width=_power_of_two(width), block_value_width=_power_of_two(value_width),
    )  # fmt: skip
    return form, {"num_warps": tile.warps, "num_stages": tile.stages}


def _power_of_two(width: int) -> int:
    return max(16, int(triton.next_power_of_2(width)))  # matrix instructions take 16 at least


def _view(x: Tensor | None) -> View:
    """A tensor of up to four dimensions, which broadcasts over (B, H, rows, columns)."""
    if x is None:
        return View(None)
    steps = [0 if size == 1 else step for size, step in zip(x.shape, x.stride(), strict=True)]
    return View(x, *[0] * (4 - len(steps)), *steps)


def _rows(x_BHQ: Tensor) -> View:
    return _view(x_BHQ[..., None])


def _heads_first(x_BQHD: Tensor | None) -> View:
    return _view(None if x_BQHD is None else x_BQHD.transpose(1, 2))


def _bytes(mask: Tensor | None) -> Any:
    return mask.view(torch.uint8) if mask is not None and mask.dtype == torch.bool else mask


def _accumulator(like: Tensor | None) -> Tensor | None:
    return None if like is None else torch.zeros(like.shape, dtype=torch.float32, device=like.device)
