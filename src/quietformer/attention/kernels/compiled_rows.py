"""Softmax and clipping of rows, forward and backward, in place: compiled where that was built, else torch's operators.

Both compute w = clamp(softmax(scores) - low, 0, high), and from the gradient of w that of the scores.
"""

# n heads, r queries, k keys

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

aten = torch.ops.aten


@dataclass(frozen=True)
class Bounds:
    """What each row loses at its lower end and may have at most: numbers, or (n or 1, r or 1, 1)."""

    low: Tensor | float
    high: Tensor | float | None

    def for_each(self, rows_nr: torch.Size) -> tuple[Tensor, Tensor]:
        """One of each for each row, as float32."""
        bounds = (self.low, torch.inf if self.high is None else self.high)
        low, high = (torch.as_tensor(bound, dtype=torch.float32, device="cpu").expand(*rows_nr, 1) for bound in bounds)
        return low.contiguous(), high.contiguous()


def weights_(scores_nrk: Tensor, bounds: Bounds) -> None:
    """Scores become weights."""
    if (rows := _compiled_for(scores_nrk)) is not None:
        low, high = bounds.for_each(scores_nrk.shape[:2])
        n_rows, n_keys = low.numel(), scores_nrk.shape[-1]
        rows.forward(*(x.data_ptr() for x in (scores_nrk, low, high)), n_rows, n_keys)
        return
    torch.softmax(scores_nrk, -1, out=scores_nrk)
    _clip(scores_nrk, bounds, out=scores_nrk)


def gradients_(scores_nrk: Tensor, weights_nrk: Tensor, grad_nrk: Tensor, bounds: Bounds) -> None:
    """Weights are filled in, the gradient of the weights becomes that of the scores, and the scores are used up."""
    if (rows := _compiled_for(scores_nrk)) is not None:
        low, high = bounds.for_each(scores_nrk.shape[:2])
        n_rows, n_keys = low.numel(), scores_nrk.shape[-1]
        rows.backward(*(x.data_ptr() for x in (scores_nrk, weights_nrk, grad_nrk, low, high)), n_rows, n_keys)
        return
    probs_nrk = torch.softmax(scores_nrk, -1, out=scores_nrk)
    _clip(probs_nrk, bounds, out=weights_nrk)
    aten.threshold_backward.grad_input(grad_nrk, weights_nrk, 0, grad_input=grad_nrk)
    if bounds.high is not None:
        grad_nrk.mul_(weights_nrk < bounds.high)
    # p * (dp - sum p dp): what softmax passes on; it reads a row before it writes it.
    aten._softmax_backward_data.out(grad_nrk, probs_nrk, -1, probs_nrk.dtype, grad_input=grad_nrk)


def _clip(probs_nrk: Tensor, bounds: Bounds, *, out: Tensor) -> None:
    if isinstance(bounds.low, Tensor):
        torch.sub(probs_nrk, bounds.low, out=out).clamp_(min=0)
    else:
        aten.softshrink.out(probs_nrk, bounds.low, out=out)  # p - low where p > low, else 0: one pass
    if bounds.high is not None:
        torch.clamp(out, max=bounds.high, out=out)


def _compiled_for(x: Tensor) -> ctypes.CDLL | None:
    """What is compiled writes where it is told: only for memory that is there, as long as it is thought to be."""
    whole = x.dtype == torch.float32 and x.device.type == "cpu" and x.is_contiguous() and type(x) is Tensor
    return compiled_rows() if whole and torch._C._len_torch_dispatch_stack() == 0 else None


@cache
def compiled_rows() -> ctypes.CDLL | None:
    """The library that setup.py builds; None if it was not, if this processor lacks AVX2, or if QUIETFORMER_PURE is set."""
    built = sorted(Path(__file__).parent.glob("_rows.*.so"))
    if not built or os.environ.get("QUIETFORMER_PURE"):
        return None
    try:
        library = ctypes.CDLL(str(built[0]))
    except OSError:
        return None
    if not library.supported():
        return None
    for function, tensors in ((library.forward, 3), (library.backward, 5)):
        function.argtypes, function.restype = [*[ctypes.c_void_p] * tensors, ctypes.c_int64, ctypes.c_int64], None
    return library
