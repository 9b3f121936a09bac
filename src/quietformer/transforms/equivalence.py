"""Checks that a rewritten model still computes the same."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from quietformer.architectures.forward import Batch, run

SAME, ROUNDINGS = 1e-3, 16
"""Allowed change of the output: relative to its largest value, and in rounding errors of its dtype."""


def first_output(model: PreTrainedModel, batch: Batch) -> Tensor:
    """The logits of a model with a head, the hidden states of a model without one."""
    output = run(model, batch)
    first: Tensor = output[0] if "logits" not in output else output["logits"]
    return first


def same_up_to_rounding(before: Tensor, after: Tensor) -> bool:
    """Whether two outputs differ at most by some rounding errors or a small share of the largest value; NaN never passes."""
    allowed = max(SAME, ROUNDINGS * torch.finfo(before.dtype).eps) * before.abs().max()
    return bool(((after - before).abs() <= allowed).all())
