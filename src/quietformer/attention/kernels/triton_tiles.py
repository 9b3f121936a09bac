"""What the Triton kernels share: their arguments, and how they read tiles of scores.

Triton passes named tuples to kernels, so a kernel takes a few groups of arguments. Scores and the logarithms of denominators
are in base 2 inside the kernels, since GPUs have an instruction for exp2.
"""

# B batch, H heads, G key/value heads, Q queries, K keys, D features per head; a tile has q queries and k keys

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from quietformer.attention.masks import HIDDEN_BELOW

HIDDEN: tl.constexpr = tl.constexpr(HIDDEN_BELOW)
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


class View(NamedTuple):
    """A tensor that broadcasts over (B, H, rows, columns): its memory (None: no such tensor) and its strides."""

    start: Any
    batch: Any = 0
    head: Any = 0
    row: Any = 0
    column: Any = 1


class Given(NamedTuple):
    """The inputs of an attention call, as kernels take them."""

    query: Any  # (B, H, Q, D)
    key: Any  # (B, G, K, D)
    value: Any  # (B, G, K, D)
    low: Any  # (B, H, Q, 1)
    sink: Any  # (1, H, 1, 1)
    mask: Any  # (B, H, Q, K), bytes or additive
    bias: Any  # (B, H, Q, K), additive
    padding: Any  # (B, 1, 1, K), bytes
    gate: Any  # (B, H, Q, D)
    seed: Any  # (1,)
    batches: Any
    heads: Any
    groups: Any
    queries: Any
    keys: Any
    scaling: Any
    zeta: Any
    dropout: Any
    kept: Any  # what weights that are not dropped are multiplied by
    offset: Any  # of a causal mask: query q sees the keys up to q + offset
    window: Any  # and of these the last so many


class Form(NamedTuple):
    """What a kernel is compiled for."""

    kind: str  # of the weights
    width: int  # features of queries and keys
    value_width: int
    causal: bool = False
    window: bool = False
    dropout: bool = False
    additive: bool = False  # the mask is additive
    whole_keys: bool = False  # the last block of keys is full
    gate_width: int = 1  # 1 or value_width
    precision: str = "ieee"  # of products of float32
    interpreted: bool = False  # Triton's interpreter multiplies no bfloat16
    block_queries: int = 64
    block_keys: int = 64
    block_width: int = 64  # the widths, rounded up to powers of two
    block_value_width: int = 64


@triton.jit
def load_rows(view, at, rows, n_rows, columns, n_columns: tl.constexpr):
    """A tile of a tensor in its own dtype; zero past its last row and column."""
    offsets = rows.to(tl.int64)[:, None] * view.row + columns[None, :] * view.column
    inside = (rows < n_rows)[:, None]
    if n_columns != columns.shape[0]:
        inside = inside & (columns < n_columns)[None, :]
    return tl.load(view.start + at[0] * view.batch + at[1] * view.head + offsets, mask=inside, other=0.0)


@triton.jit
def store_rows(view, at, rows, n_rows, tile, n_columns: tl.constexpr):
    """Write a tile, in the dtype of the tensor."""
    columns = tl.arange(0, tile.shape[1])
    offsets = rows.to(tl.int64)[:, None] * view.row + columns[None, :] * view.column
    inside = (rows < n_rows)[:, None] & (columns < n_columns)[None, :]
    start = view.start + at[0] * view.batch + at[1] * view.head
    tl.store(start + offsets, tile.to(view.start.dtype.element_ty), mask=inside)


@triton.jit
def load_vector(view, at, rows, n_rows):
    """One float32 per row; zero past the last row."""
    start = view.start + at[0] * view.batch + at[1] * view.head
    return tl.load(start + rows.to(tl.int64) * view.row, mask=rows < n_rows, other=0.0).to(tl.float32)


@triton.jit
def product(left, right, form: tl.constexpr):
    """The matrix product of two tiles of one dtype, summed in float32."""
    if form.interpreted:
        return tl.dot(left.to(tl.float32), right.to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(left, right, input_precision=form.precision)


@triton.jit
def load_tile(view, at, rows, keys, given):
    """A tile of a tensor (B, H, Q, K)."""
    start = view.start + at[0] * view.batch + at[1] * view.head
    offsets = rows.to(tl.int64)[:, None] * view.row + keys.to(tl.int64)[None, :] * view.column
    inside = (rows < given.queries)[:, None] & (keys < given.keys)[None, :]
    return tl.load(start + offsets, mask=inside, other=0.0)


@triton.jit
def masked_scores(products_qk, given, at, rows, keys, form: tl.constexpr):
    """Scores in base 2 from products of queries and keys; minus infinity where a key is hidden from a query.

    Rows past the last query are computed as if they were there. Nobody stores them, and the gradient of their context is zero.
    """
    scores_qk = products_qk * (given.scaling * LOG2E)
    if given.bias.start is not None:
        scores_qk += load_tile(given.bias, at, rows, keys, given).to(tl.float32) * LOG2E
    if given.mask.start is not None:
        mask_qk = load_tile(given.mask, at, rows, keys, given)
        if form.additive:
            mask_qk = mask_qk.to(tl.float32)
            scores_qk = tl.where(mask_qk > HIDDEN, scores_qk + mask_qk * LOG2E, float("-inf"))
        else:
            scores_qk = tl.where(mask_qk != 0, scores_qk, float("-inf"))
    if given.padding.start is not None:
        start = given.padding.start + at[0] * given.padding.batch
        real = tl.load(start + keys * given.padding.column, mask=keys < given.keys, other=0)
        scores_qk = tl.where((real != 0)[None, :], scores_qk, float("-inf"))
    if not form.whole_keys:
        scores_qk = tl.where((keys < given.keys)[None, :], scores_qk, float("-inf"))
    if form.causal:
        last = (rows + given.offset)[:, None]
        scores_qk = tl.where(keys[None, :] <= last, scores_qk, float("-inf"))
        if form.window:
            scores_qk = tl.where(keys[None, :] > last - given.window, scores_qk, float("-inf"))
    return scores_qk


@triton.jit
def dropout_factors(given, at, rows, keys):
    """What dropout multiplies the weights of a tile by: the same however the weights are split into tiles."""
    n_q: tl.constexpr = rows.shape[0]
    n_k: tl.constexpr = keys.shape[0]
    zero = tl.full((n_q, n_k), 0, tl.int32)
    seed = tl.load(given.seed.start)
    place = (at[0] * given.heads + at[1]).to(tl.int32)
    bits, _, _, _ = tl.philox(seed, rows[:, None] + zero, keys[None, :] + zero, place + zero, zero)
    return tl.where(tl.uint_to_uniform_float(bits) >= given.dropout, given.kept, 0.0)


@triton.jit
def key_span(first, given, form: tl.constexpr):
    """The keys that a block of queries may see: the first, at the start of a block, and the one after the last."""
    begin, end = 0, given.keys
    if form.causal:
        end = tl.minimum(end, first + form.block_queries + given.offset)
        if form.window:
            begin = tl.maximum(0, first + given.offset - given.window + 1) // form.block_keys * form.block_keys
    return begin, end


@triton.jit
def query_span(first, given, form: tl.constexpr):
    """The queries that may see a block of keys: the first, at the start of a block, and the one after the last."""
    begin, end = 0, given.queries
    if form.causal:
        begin = tl.maximum(0, first - given.offset) // form.block_queries * form.block_queries
        if form.window:
            end = tl.minimum(end, first + form.block_keys - 1 - given.offset + given.window)
    return begin, end
