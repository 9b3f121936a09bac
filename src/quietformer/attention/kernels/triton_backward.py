"""The backward pass in Triton: one kernel for the slopes of the rows, one for the gradients of queries, keys and values.

The weights are computed again from the scores and L. The gradient of a score has a direct part and one through L; the second
needs one number per row, the row's slope. Where weights are clipped it is a sum over the keys, elsewhere it is the context
times its gradient.
"""

# B batch, H heads, G key/value heads, Q queries, K keys, D features per head; a tile has q queries and k keys

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from quietformer.attention.kernels.triton_forward import place_of_queries
from quietformer.attention.kernels.triton_tiles import (
    dropout_factors,
    key_span,
    load_rows,
    load_vector,
    masked_scores,
    product,
    query_span,
    store_rows,
)
from quietformer.attention.kernels.triton_weights import clipped_slope, score_gradient, weights


class Slopes(NamedTuple):
    """What the first kernel reads and writes; views with strides."""

    context: Any  # (B, H, Q, D), with the gate
    grad: Any  # (B, H, Q, D), of the context
    lse: Any  # (B, H, Q)
    slope: Any  # (B, H, Q)
    ungated: Any  # (B, H, Q, D): the gradient of the context before the gate; None without a gate
    grad_gate: Any  # (B, H, Q, D or 1); None if it is not asked for


class Gradients(NamedTuple):
    """What the second kernel reads and writes."""

    grad: Any  # (B, H, Q, D), of the context before the gate
    lse: Any
    slope: Any
    query: Any
    key: Any
    value: Any
    bias: Any  # (B, H, Q, K), float32 that is added to; None if it is not asked for


@triton.jit
def row_slopes(given, out, form: tl.constexpr):
    """The slope of each row, and the gradients of the gate and of what it multiplies."""
    at, group, first = place_of_queries(tl.program_id(0), given, form)
    rows = first + tl.arange(0, form.block_queries)
    value_columns = tl.arange(0, form.block_value_width)
    grad_qD = load_rows(out.grad, at, rows, given.queries, value_columns, form.value_width)
    context_qD = load_rows(out.context, at, rows, given.queries, value_columns, form.value_width)
    both_qD = grad_qD.to(tl.float32) * context_qD.to(tl.float32)
    slope_q = tl.sum(both_qD, 1)
    if given.gate.start is not None:
        if form.gate_width == 1:
            gate_qD = load_vector(given.gate, at, rows, given.queries)[:, None]
            both_qD = slope_q[:, None]
        else:
            gate_qD = load_rows(given.gate, at, rows, given.queries, value_columns, form.value_width).to(tl.float32)
        if out.grad_gate.start is not None:
            # A gate of zero has a sigmoid without slope behind it, so the gradient that is lost here has no effect.
            grad_gate_qD = tl.where(gate_qD == 0, 0.0, both_qD / tl.where(gate_qD == 0, 1.0, gate_qD))
            store_rows(out.grad_gate, at, rows, given.queries, grad_gate_qD, form.gate_width)
        grad_qD = (grad_qD.to(tl.float32) * gate_qD).to(grad_qD.dtype)
        store_rows(out.ungated, at, rows, given.queries, grad_qD, form.value_width)
    if form.kind == "clipped":
        slope_q = slope_of_clipped(grad_qD, given, out.lse, (at, group, first), form)
    start = out.slope.start + at[0] * out.slope.batch + at[1] * out.slope.head
    tl.store(start + rows * out.slope.row, slope_q, mask=rows < given.queries)


@triton.jit
def slope_of_clipped(grad_qD, given, lse, place, form: tl.constexpr):
    """The sum over the keys of p times the gradient of p."""
    at, group, first = place
    rows = first + tl.arange(0, form.block_queries)
    columns = tl.arange(0, form.block_width)
    value_columns = tl.arange(0, form.block_value_width)
    query_qD = load_rows(given.query, at, rows, given.queries, columns, form.width)
    lse_q, low_q = load_vector(lse, at, rows, given.queries), load_vector(given.low, at, rows, given.queries)
    slope_q = tl.full((form.block_queries,), 0, tl.float32)
    begin, end = key_span(first, given, form)
    for key in range(begin, end, form.block_keys):
        keys = key + tl.arange(0, form.block_keys)
        key_kD = load_rows(given.key, group, keys, given.keys, columns, form.width)
        scores_qk = masked_scores(product(query_qD, tl.trans(key_kD), form), given, at, rows, keys, form)
        value_kD = load_rows(given.value, group, keys, given.keys, value_columns, form.value_width)
        grad_qk = product(grad_qD, tl.trans(value_kD), form)
        if form.dropout:
            grad_qk *= dropout_factors(given, at, rows, keys)
        _, direct_qk = clipped_slope(scores_qk, grad_qk, lse_q, low_q, given.zeta)
        slope_q += tl.sum(direct_qk, 1)
    return slope_q


@triton.jit
def gradients(given, out, form: tl.constexpr):
    """The gradients of queries, keys, values and the bias: the first programs take keys, the others queries."""
    key_programs = given.batches * given.groups * tl.cdiv(given.keys, form.block_keys)
    program = tl.program_id(0)
    if program < key_programs:
        gradients_of_keys(program, given, out, form)
    else:
        gradients_of_queries(program - key_programs, given, out, form)


@triton.jit
def gradients_of_tile(tiles, given, place, rows_of, form: tl.constexpr):
    """The weights after dropout and the gradients of the scores, from tiles of queries, keys, values and the gradient."""
    query_qD, key_kD, value_kD, grad_qD = tiles
    at, rows, keys = place
    scores_qk = masked_scores(product(query_qD, tl.trans(key_kD), form), given, at, rows, keys, form)
    weights_qk = weights(scores_qk, rows_of[0], rows_of[1], given.zeta, form)
    grad_qk = product(grad_qD, tl.trans(value_kD), form)
    if form.dropout:
        factors_qk = dropout_factors(given, at, rows, keys)
        weights_qk *= factors_qk
        grad_qk *= factors_qk
    return weights_qk, score_gradient(scores_qk, grad_qk, rows_of, given.zeta, form)


@triton.jit
def gradients_of_keys(program, given, out, form: tl.constexpr):
    """The gradients of a block of keys and values, from all queries of all heads that read them."""
    blocks = tl.cdiv(given.keys, form.block_keys)
    batch, group = (program // blocks // given.groups).to(tl.int64), (program // blocks % given.groups).to(tl.int64)
    first = program % blocks * form.block_keys
    keys = first + tl.arange(0, form.block_keys)
    columns = tl.arange(0, form.block_width)
    value_columns = tl.arange(0, form.block_value_width)
    key_kD = load_rows(given.key, (batch, group), keys, given.keys, columns, form.width)
    value_kD = load_rows(given.value, (batch, group), keys, given.keys, value_columns, form.value_width)
    grad_key_kD = tl.full((form.block_keys, form.block_width), 0, tl.float32)
    grad_value_kD = tl.full((form.block_keys, form.block_value_width), 0, tl.float32)
    repeats = given.heads // given.groups
    begin, end = query_span(first, given, form)
    for repeat in range(0, repeats):
        at = (batch, group * repeats + repeat)
        for query in range(begin, end, form.block_queries):
            rows = query + tl.arange(0, form.block_queries)
            query_qD = load_rows(given.query, at, rows, given.queries, columns, form.width)
            grad_qD = load_rows(out.grad, at, rows, given.queries, value_columns, form.value_width)
            rows_of = (
                load_vector(out.lse, at, rows, given.queries),
                load_vector(given.low, at, rows, given.queries),
                load_vector(out.slope, at, rows, given.queries),
            )
            tiles = (query_qD, key_kD, value_kD, grad_qD)
            weights_qk, grad_qk = gradients_of_tile(tiles, given, (at, rows, keys), rows_of, form)
            grad_value_kD += product(tl.trans(weights_qk.to(grad_qD.dtype)), grad_qD, form)
            grad_key_kD += product(tl.trans(grad_qk.to(query_qD.dtype)), query_qD, form)
    store_rows(out.key, (batch, group), keys, given.keys, grad_key_kD * given.scaling, form.width)
    store_rows(out.value, (batch, group), keys, given.keys, grad_value_kD, form.value_width)


@triton.jit
def gradients_of_queries(program, given, out, form: tl.constexpr):
    """The gradients of a block of queries, and of the bias."""
    at, group, first = place_of_queries(program, given, form)
    rows = first + tl.arange(0, form.block_queries)
    columns = tl.arange(0, form.block_width)
    value_columns = tl.arange(0, form.block_value_width)
    query_qD = load_rows(given.query, at, rows, given.queries, columns, form.width)
    grad_qD = load_rows(out.grad, at, rows, given.queries, value_columns, form.value_width)
    rows_of = (
        load_vector(out.lse, at, rows, given.queries),
        load_vector(given.low, at, rows, given.queries),
        load_vector(out.slope, at, rows, given.queries),
    )
    grad_query_qD = tl.full((form.block_queries, form.block_width), 0, tl.float32)
    begin, end = key_span(first, given, form)
    for key in range(begin, end, form.block_keys):
        keys = key + tl.arange(0, form.block_keys)
        key_kD = load_rows(given.key, group, keys, given.keys, columns, form.width)
        value_kD = load_rows(given.value, group, keys, given.keys, value_columns, form.value_width)
        tiles = (query_qD, key_kD, value_kD, grad_qD)
        _, grad_qk = gradients_of_tile(tiles, given, (at, rows, keys), rows_of, form)
        if out.bias.start is not None:
            start = out.bias.start + at[0] * out.bias.batch + at[1] * out.bias.head
            offsets = rows.to(tl.int64)[:, None] * out.bias.row + keys.to(tl.int64)[None, :] * out.bias.column
            inside = (rows < given.queries)[:, None] & (keys < given.keys)[None, :]
            tl.atomic_add(start + offsets, grad_qk, mask=inside)
        grad_query_qD += product(grad_qk.to(key_kD.dtype), key_kD, form)
    store_rows(out.query, at, rows, given.queries, grad_query_qD * given.scaling, form.width)
