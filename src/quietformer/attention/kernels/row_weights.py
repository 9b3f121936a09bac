"""What a normalizer says about its weights, so that one kernel can compute the attention of all of them.

s is a score and L the logarithm of the row's denominator, which includes the sink where there is one:

- softmax: exp(s - L)
- clipped: clamp((zeta - low) exp(s - L) + low, 0, 1)
- softpick: relu(exp(s) - 1) exp(-L), where L = log(epsilon + sum |exp(s) - 1|)
- sigmoid: sigmoid(s + low)
"""

# B batch, H heads, Q queries

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

SOFTPICK_EPSILON = 1e-6
"""Added to softpick's denominator, which is zero where all scores are."""

Kind = Literal["softmax", "clipped", "softpick", "sigmoid"]


@dataclass(frozen=True)
class RowWeights:
    """The weights of all rows of one attention call."""

    kind: Kind
    low: Tensor | float = (
        0.0  # gamma, or the sigmoid's bias; a tensor broadcasts over (B, H, Q, 1) and gets no gradient
    )
    zeta: float = 1.0
    sink: Tensor | float | None = None  # the logit of a sink without a value, one per head (H,) or one for all
    factor: Tensor | None = None  # multiplies the rows of the context, broadcastable over (B, H, Q, 1)
