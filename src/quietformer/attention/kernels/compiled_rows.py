"""Row-wise clipped softmax, forward and backward, as two in-place torch operators.

- `quietformer::clipped_rows_(scores, low, high)` replaces scores by w = clamp(softmax(scores) - low, 0, high).
- `quietformer::clipped_rows_backward_(scores, weights, grad, low, high)` fills in w and replaces the gradient of w by the
  gradient of the scores. The scores are overwritten.

On a CPU they call the C extension `_rows` (rows.c) where it was built, and torch's own operators otherwise. The operators are
registered with `torch.library.Library` and not with `custom_op`, whose wrapper costs about 9 µs per call instead of 1 µs.
"""

# n heads, r queries, k keys

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

# Kept alive in a global: the operators vanish with this object.
_LIBRARY: Any = torch.library.Library("quietformer", "FRAGMENT")  # type: ignore[no-untyped-call]

_LIBRARY.define("clipped_rows_(Tensor(a!) scores, Tensor low, Tensor? high) -> ()")

_LIBRARY.define(
    "clipped_rows_backward_(Tensor(a!) scores, Tensor(b!) weights, Tensor(c!) grad, Tensor low, Tensor? high) -> ()"
)


@dataclass(frozen=True)
class Bounds:
    """The lower and upper bound of each row: a number for all rows, or a tensor (n or 1, r or 1, 1)."""

    low: Tensor | float
    high: Tensor | float | None  # None: no upper bound

    def as_tensors(self, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """The bounds as the operators take them: a number becomes a 0-d CPU tensor."""
        high = None if self.high is None else _as_tensor(self.high, dtype)
        return _as_tensor(self.low, dtype), high


def weights_(scores_nrk: Tensor, bounds: Bounds) -> None:
    """Replace scores by weights, in place."""
    low, high = bounds.as_tensors(scores_nrk.dtype)
    torch.ops.quietformer.clipped_rows_.default(scores_nrk, low, high)


def gradients_(scores_nrk: Tensor, weights_nrk: Tensor, grad_nrk: Tensor, bounds: Bounds) -> None:
    """Fill in the weights and replace their gradient by that of the scores, in place; the scores are overwritten."""
    low, high = bounds.as_tensors(scores_nrk.dtype)
    torch.ops.quietformer.clipped_rows_backward_.default(scores_nrk, weights_nrk, grad_nrk, low, high)


@cache
def compiled_rows() -> ModuleType | None:
    """The C extension; None if it was not built, if this CPU lacks AVX2, or if QUIETFORMER_PURE is set."""
    if os.environ.get("QUIETFORMER_PURE"):
        return None
    try:
        from quietformer.attention.kernels import _rows
    except ImportError:
        return None
    return _rows if _rows.supported() else None


def _as_tensor(bound: Tensor | float, dtype: torch.dtype) -> Tensor:
    # On the CPU also for scores on a GPU: the operators read the number back, which would make a GPU wait.
    return bound if isinstance(bound, Tensor) else torch.full((), bound, dtype=dtype, device="cpu")


def _clipped_rows_(scores_nrk: Tensor, low: Tensor, high: Tensor | None) -> None:
    if (rows := _compiled_for(scores_nrk)) is None:
        torch.softmax(scores_nrk, -1, out=scores_nrk)
        _clip(scores_nrk, low, high, out=scores_nrk)
        return
    n_heads, n_rows, n_keys = scores_nrk.shape
    lows, highs = (_for_rows(bound, scores_nrk) for bound in (low, high))
    rows.forward(scores_nrk.data_ptr(), *_address(lows), *_address(highs), n_heads * n_rows, n_keys)


def _clipped_rows_backward_(
    scores_nrk: Tensor, weights_nrk: Tensor, grad_nrk: Tensor, low: Tensor, high: Tensor | None
) -> None:
    if (rows := _compiled_for(scores_nrk, weights_nrk, grad_nrk)) is not None:
        n_heads, n_rows, n_keys = scores_nrk.shape
        lows, highs = (_for_rows(bound, scores_nrk) for bound in (low, high))
        addresses = (x.data_ptr() for x in (scores_nrk, weights_nrk, grad_nrk))
        rows.backward(*addresses, *_address(lows), *_address(highs), n_heads * n_rows, n_keys)
        return
    probs_nrk = torch.softmax(scores_nrk, -1, out=scores_nrk)
    _clip(probs_nrk, low, high, out=weights_nrk)
    aten.threshold_backward.grad_input(grad_nrk, weights_nrk, 0, grad_input=grad_nrk)
    if high is not None:
        grad_nrk.mul_(weights_nrk < _number_or_tensor(high))
    # The backward pass of softmax, p * (dp - sum p dp); safe in place, since it reads a whole row before writing it.
    aten._softmax_backward_data.out(grad_nrk, probs_nrk, -1, probs_nrk.dtype, grad_input=grad_nrk)


def _does_nothing(*_: Tensor | None) -> None:
    """Fake implementation for both operators: they return nothing, and mutation changes no shape."""


for _name, _function in (
    ("clipped_rows_", _clipped_rows_),
    ("clipped_rows_backward_", _clipped_rows_backward_),
):
    _LIBRARY.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"quietformer::{_name}", _does_nothing, lib=_LIBRARY)


def _clip(probs_nrk: Tensor, low: Tensor, high: Tensor | None, *, out: Tensor) -> None:
    if low.dim():
        torch.sub(probs_nrk, low, out=out).clamp_(min=0)
    else:
        aten.softshrink.out(probs_nrk, float(low), out=out)  # p - low where p > low, else 0, in one pass
    if high is not None:
        torch.clamp(out, max=_number_or_tensor(high), out=out)


def _number_or_tensor(bound: Tensor) -> Tensor | float:
    return bound if bound.dim() else float(bound)


def _compiled_for(*tensors_nrk: Tensor) -> ModuleType | None:
    """The C extension if it can work on these tensors: it takes contiguous float32 in main memory, of equal shapes."""
    if all(
        x.dtype == torch.float32
        and x.device.type == "cpu"
        and x.is_contiguous()
        and x.dim() == 3
        and x.shape == tensors_nrk[0].shape
        for x in tensors_nrk
    ):
        return compiled_rows()
    return None


def _for_rows(bound: Tensor | None, scores_nrk: Tensor) -> Tensor | None:
    """A bound as C reads it: one float32 for all rows, or one per row."""
    if bound is None:
        return None
    bound = bound.to("cpu", torch.float32)
    return bound.expand(*scores_nrk.shape[:2], 1).contiguous() if bound.dim() else bound


def _address(bound: Tensor | None) -> tuple[int, int]:
    """Where the numbers of a bound start, and the step from one row to the next."""
    return (0, 0) if bound is None else (bound.data_ptr(), min(1, bound.dim()))
