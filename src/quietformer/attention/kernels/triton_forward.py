"""The forward pass in Triton: one kernel for the logarithms of the denominators, one for the context.

The first runs for clipped weights only, since clipping needs the whole denominator. The others divide at the end.
"""

# B batch, H heads, G key/value heads, Q queries, D features per head; a tile has q queries and k keys

from __future__ import annotations

import triton
import triton.language as tl

from quietformer.attention.kernels.triton_tiles import (
    dropout_factors,
    key_span,
    load_rows,
    load_vector,
    masked_scores,
    product,
    store_rows,
)
from quietformer.attention.kernels.triton_weights import add_to_total, first_total, log_total, weights


@triton.jit
def place_of_queries(program, given, form: tl.constexpr):
    """The sequence and head of a program, its key/value head, and its first query."""
    blocks = tl.cdiv(given.queries, form.block_queries)
    batch = (program // blocks // given.heads).to(tl.int64)
    head = (program // blocks % given.heads).to(tl.int64)
    return (batch, head), (batch, head // (given.heads // given.groups)), program % blocks * form.block_queries


@triton.jit
def row_statistics(given, lse, form: tl.constexpr):
    """L of each row."""
    at, group, first = place_of_queries(tl.program_id(0), given, form)
    rows = first + tl.arange(0, form.block_queries)
    columns = tl.arange(0, form.block_width)
    query_qD = load_rows(given.query, at, rows, given.queries, columns, form.width)
    shift, total = first_total(given, at, form)
    begin, end = key_span(first, given, form)
    for key in range(begin, end, form.block_keys):
        keys = key + tl.arange(0, form.block_keys)
        key_kD = load_rows(given.key, group, keys, given.keys, columns, form.width)
        scores_qk = masked_scores(product(query_qD, tl.trans(key_kD), form), given, at, rows, keys, form)
        shift, _, total, _ = add_to_total(shift, total, scores_qk, form)
    start = lse.start + at[0] * lse.batch + at[1] * lse.head
    tl.store(start + rows * lse.row, log_total(shift, total), mask=rows < given.queries)


@triton.jit
def context_of_rows(given, lse, context, form: tl.constexpr):
    """The weights times the values, and the gate; also L, unless the weights are clipped or have no denominator."""
    at, group, first = place_of_queries(tl.program_id(0), given, form)
    rows = first + tl.arange(0, form.block_queries)
    columns = tl.arange(0, form.block_width)
    value_columns = tl.arange(0, form.block_value_width)
    query_qD = load_rows(given.query, at, rows, given.queries, columns, form.width)
    low_q = load_vector(given.low, at, rows, given.queries)
    lse_q = tl.full((form.block_queries,), 0, tl.float32)
    if form.kind == "clipped":
        lse_q = load_vector(lse, at, rows, given.queries)
    shift, total = first_total(given, at, form)
    sum_qD = tl.full((form.block_queries, form.block_value_width), 0, tl.float32)
    begin, end = key_span(first, given, form)
    for key in range(begin, end, form.block_keys):
        keys = key + tl.arange(0, form.block_keys)
        key_kD = load_rows(given.key, group, keys, given.keys, columns, form.width)
        scores_qk = masked_scores(product(query_qD, tl.trans(key_kD), form), given, at, rows, keys, form)
        if form.kind == "softmax" or form.kind == "softpick":
            shift, lse_q, total, factor = add_to_total(shift, total, scores_qk, form)
            sum_qD *= factor[:, None]
        weights_qk = weights(scores_qk, lse_q, low_q, given.zeta, form)
        if form.dropout:
            weights_qk *= dropout_factors(given, at, rows, keys)
        value_kD = load_rows(given.value, group, keys, given.keys, value_columns, form.value_width)
        sum_qD += product(weights_qk.to(value_kD.dtype), value_kD, form)
    if form.kind == "softmax" or form.kind == "softpick":
        sum_qD = tl.where((total > 0)[:, None], sum_qD / total[:, None], 0.0)
        start = lse.start + at[0] * lse.batch + at[1] * lse.head
        tl.store(start + rows * lse.row, log_total(shift, total), mask=rows < given.queries)
    if given.gate.start is not None:
        if form.gate_width == 1:
            sum_qD *= load_vector(given.gate, at, rows, given.queries)[:, None]
        else:
            sum_qD *= load_rows(given.gate, at, rows, given.queries, value_columns, form.value_width).to(tl.float32)
    store_rows(context, at, rows, given.queries, sum_qD, form.value_width)
