"""How well a model in training does, example by example: losses, labels, right predictions."""

# B examples

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from quietformer.data.token_labels import IGNORED


def aligned(logits: Tensor, labels: Tensor, task: str) -> tuple[Tensor, Tensor]:
    """One row of logits for each label: a causal model's speak of the token after."""
    if task == "causal":
        logits, labels = logits[..., :-1, :], labels[..., 1:]
    return logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)


def example_scores(logits: Tensor, labels: Tensor, task: str) -> Tensor:
    """(B, 3): summed loss, number of labels, number of right predictions."""
    flat, targets = aligned(logits, labels, task)
    losses = nn.functional.cross_entropy(flat.float(), targets, ignore_index=IGNORED, reduction="none")
    asked = targets != IGNORED
    right = (flat.argmax(-1) == targets) & asked
    columns = [column.reshape(len(labels), -1).float().sum(1) for column in (losses, asked, right)]
    return torch.stack(columns, dim=1)


def metrics_for(task: str) -> Callable[[Any], dict[str, float]]:
    """Weighted by what was asked for, not by batch."""

    def compute(prediction: Any) -> dict[str, float]:
        nll, count, right = np.asarray(prediction.predictions, dtype=np.float64).sum(0)
        mean = nll / max(count, 1.0)
        metrics = {"nll": float(mean), "accuracy": float(right / max(count, 1.0))}
        if task in ("masked", "causal"):
            metrics["perplexity"] = math.exp(mean) if mean < 700 else math.inf
        return metrics

    return compute
