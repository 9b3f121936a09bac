"""Whether a rewritten model still computes the same."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from quietformer.architectures.forward import Batch, run

SAME, ROUNDINGS = 1e-3, 16
"""How far the output may move relative to its largest value, or by how many roundings of a narrower dtype."""


def first_output(model: PreTrainedModel, batch: Batch) -> Tensor:
    """The logits of a model with a head, the hidden states of one without."""
    output = run(model, batch)
    first: Tensor = output[0] if "logits" not in output else output["logits"]
    return first


def same_up_to_rounding(before: Tensor, after: Tensor) -> bool:
    """Whether two outputs differ by some roundings, or by a small share of the largest value, at most; NaN does not pass."""
    allowed = max(SAME, ROUNDINGS * torch.finfo(before.dtype).eps) * before.abs().max()
    return bool(((after - before).abs() <= allowed).all())
