"""The loss of self-distillation: how far a student is from its teacher on one batch."""

# B examples, T tokens, d features, V words or classes

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from quietformer.architectures.forward import Batch
from quietformer.config.recipe import TeacherRecipe
from quietformer.data.token_labels import IGNORED, next_tokens
from quietformer.errors import QuietformerError
from quietformer.models.pooling import MEAN, Pooling

MASSIVE = 100.0
"""Hidden states past so many times the median magnitude are outliers that training removes, so they are not compared."""


def distillation_loss(
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
    inputs: Batch,
    weights: TeacherRecipe,
    task: str,
    pooling: Pooling = MEAN,
) -> Tensor:
    """The weighted differences of a student from its teacher on one batch; padding counts nowhere."""
    terms: list[Tensor] = []
    states = list(zip(ours.get("hidden_states") or (), theirs.get("hidden_states") or (), strict=True))[1:]
    mask = inputs.get("attention_mask")
    if states and (weights.hidden or weights.last_hidden):
        differences = [relative_difference(x, y, mask) for x, y in states]
        terms += [weights.hidden * torch.stack(differences).mean(), weights.last_hidden * differences[-1]]
    if task == "embedding" and weights.pooled:
        x, y = (pooling(output["last_hidden_state"].float(), mask) for output in (ours, theirs))
        terms.append(weights.pooled * (1 - nn.functional.cosine_similarity(x, y, dim=-1)).mean())
    if "logits" in ours and weights.logits:
        terms.append(weights.logits * divergence(ours["logits"], theirs["logits"], mask))
    if task == "causal" and weights.objective:
        labels = next_tokens(inputs)
        flat = ours["logits"].float().flatten(0, -2)
        terms.append(weights.objective * nn.functional.cross_entropy(flat, labels.flatten(), ignore_index=IGNORED))
    if not terms:
        raise QuietformerError(
            "nothing of this model is compared with its teacher; give teacher.hidden or teacher.logits"
        )
    return torch.stack(terms).sum()


def relative_difference(x: Tensor, y: Tensor, mask: Tensor | None) -> Tensor:
    """sum (x - y)^2 / sum (y - mean y)^2 over the tokens that are text, without the teacher's massive values.

    One value of 20,000 would be all of the variance: keeping it would be everything, and the rest nothing.
    """
    if mask is not None and mask.shape == x.shape[:2]:
        x, y = x[mask.bool()], y[mask.bool()]
    x, y = x.float(), y.float()
    ordinary = y.abs() <= MASSIVE * y.abs().median()
    if bool(ordinary.any()) and not bool(ordinary.all()):
        x, y = x[ordinary], y[ordinary]
    return (x - y).square().mean() / y.var(correction=0).clamp(min=torch.finfo(torch.float32).tiny)


def divergence(ours: Tensor, theirs: Tensor, mask: Tensor | None) -> Tensor:
    """KL(teacher | student), the mean over predictions."""
    if mask is not None and mask.shape == ours.shape[:2]:
        ours, theirs = ours[mask.bool()], theirs[mask.bool()]
    ours, theirs = ours.float().flatten(0, -2), theirs.float().flatten(0, -2)
    found: Tensor = nn.functional.kl_div(
        torch.log_softmax(ours, -1), torch.log_softmax(theirs, -1), log_target=True, reduction="batchmean"
    )
    return found
