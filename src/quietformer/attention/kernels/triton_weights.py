"""The weight functions of the Triton kernels and their slopes: all that differs between one attention and another.

Scores and L are in base 2; gradients are those of the scores in base e. A hidden key has the score minus infinity. A row that
sees no key and has no sink has L = infinity.
"""

# a tile has q queries and k keys

from __future__ import annotations

import triton
import triton.language as tl

from quietformer.attention.kernels.row_weights import SOFTPICK_EPSILON
from quietformer.attention.kernels.triton_tiles import LOG2E

EPSILON: tl.constexpr = tl.constexpr(SOFTPICK_EPSILON)


@triton.jit
def first_total(given, at, form: tl.constexpr):
    """The running maximum and the denominator before any key: nothing, the sink, or softpick's epsilon."""
    shift = tl.full((form.block_queries,), float("-inf"), tl.float32)
    total = tl.full((form.block_queries,), 0, tl.float32)
    if given.sink.start is not None:
        shift = tl.zeros_like(total) + tl.load(given.sink.start + at[1] * given.sink.head).to(tl.float32) * LOG2E
        total += 1.0
    if form.kind == "softpick":
        shift = tl.zeros_like(total)
        total += EPSILON
    return shift, total


@triton.jit
def add_to_total(shift, total, scores_qk, form: tl.constexpr):
    """The running maximum and the denominator after more keys, and the factor of what was summed with the old maximum."""
    larger = tl.maximum(shift, tl.max(scores_qk, 1))
    safe = tl.where(larger == float("-inf"), 0.0, larger)  # no key was seen so far
    factor = tl.exp2(shift - safe)
    mass_qk = tl.exp2(scores_qk - safe[:, None])
    if form.kind == "softpick":
        mass_qk = tl.where(scores_qk == float("-inf"), 0.0, tl.abs(mass_qk - tl.exp2(-safe)[:, None]))
    return larger, safe, total * factor + tl.sum(mass_qk, 1), factor


@triton.jit
def log_total(shift, total):
    """L in base 2."""
    return tl.where(total > 0, shift + tl.log2(tl.where(total > 0, total, 1.0)), float("inf"))


@triton.jit
def weights(scores_qk, lse_q, low_q, zeta, form: tl.constexpr):
    """The weights of a tile. For softmax and softpick, any other reference than L gives multiples of the weights."""
    if form.kind == "sigmoid":
        return 1 / (1 + tl.exp2(-(scores_qk + (low_q * LOG2E)[:, None])))
    else:
        probs_qk = tl.exp2(scores_qk - lse_q[:, None])
        if form.kind == "clipped":
            stretched_qk = (zeta - low_q)[:, None] * probs_qk + low_q[:, None]
            return tl.minimum(tl.maximum(stretched_qk, 0.0), 1.0)
        elif form.kind == "softpick":
            return tl.maximum(probs_qk - tl.exp2(-lse_q)[:, None], 0.0)
        else:
            return probs_qk


@triton.jit
def clipped_slope(scores_qk, grad_qk, lse_q, low_q, zeta):
    """p times the gradient of p, for p before it is stretched and clipped; clipped weights pass no gradient."""
    probs_qk = tl.exp2(scores_qk - lse_q[:, None])
    stretch_q = zeta - low_q
    stretched_qk = stretch_q[:, None] * probs_qk + low_q[:, None]
    inside = (stretched_qk > 0.0) & (stretched_qk < 1.0)
    return probs_qk, tl.where(inside, stretch_q[:, None] * grad_qk * probs_qk, 0.0)


@triton.jit
def score_gradient(scores_qk, grad_qk, rows, zeta, form: tl.constexpr):
    """The gradient of the scores from that of the weights; `rows` are L, low and the row's slope, the sum of the gradients
    of the weights times the weights (times the probabilities where they are clipped), which comes in through L."""
    lse_q, low_q, slope_q = rows
    if form.kind == "sigmoid":
        weights_qk = weights(scores_qk, lse_q, low_q, zeta, form)
        return weights_qk * (1 - weights_qk) * grad_qk
    elif form.kind == "clipped":
        probs_qk, direct_qk = clipped_slope(scores_qk, grad_qk, lse_q, low_q, zeta)
        return direct_qk - probs_qk * slope_q[:, None]
    else:
        change_qk = grad_qk - slope_q[:, None]
        if form.kind == "softpick":  # below zero a key has no weight, and adds to the denominator as it falls
            change_qk = tl.where(scores_qk > 0, change_qk, tl.where(scores_qk < 0, slope_q[:, None], 0.0))
        return tl.exp2(scores_qk - lse_q[:, None]) * change_qk
