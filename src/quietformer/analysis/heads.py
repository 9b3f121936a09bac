"""What each attention head does: how much of its work is to do nothing."""

# B batch, H heads, Q queries, K keys, D features of a head

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quietformer.results.inspect import HeadMetrics

LOW_VALUE = 0.5
"""A key counts as nearly valueless below this share of the median value norm."""

MEASURES = {
    "no_op": "attention on nearly valueless keys, times how small the update is",
    "sink": "mean attention that the most attended key of a sequence gets",
    "entropy": "entropy of a row, as a share of the largest possible",
    "zeros": "share of visible weights that are exactly zero",
    "ones": "share of weights that are exactly one",
    "zero_rows": "share of rows that are entirely zero",
    "gate": "mean openness of the gate",
}


@dataclass
class HeadTally:
    """Sums over sequences of the measures of one layer's heads."""

    sums: dict[str, Tensor]
    sequences: int = 0

    @classmethod
    def empty(cls, n_heads: int, *, gated: bool) -> HeadTally:
        return cls({name: torch.zeros(n_heads, dtype=torch.float64) for name in MEASURES if gated or name != "gate"})

    def add(self, measures: dict[str, Tensor]) -> None:
        for name, measure_BH in measures.items():
            self.sums[name] += measure_BH.double().sum(0)
        self.sequences += len(measures["sink"])

    def head_metrics(self, layer: int) -> HeadMetrics:
        return HeadMetrics(
            layer=layer, **{name: (total / self.sequences).tolist() for name, total in self.sums.items()}
        )


def head_measures(
    probs_BHQK: Tensor, values_BHKD: Tensor, update_BQHD: Tensor, pairs_B1QK: Tensor
) -> dict[str, Tensor]:
    """The measures of each sequence and head over the pairs of a real query with a key it can see."""
    pairs = pairs_B1QK.float()
    rows_B1Q = pairs_B1QK.any(-1).float()
    keys_B1K = pairs_B1QK.any(-2)
    n_rows, n_pairs = rows_B1Q.sum(-1).clamp(min=1), pairs.sum((-2, -1)).clamp(min=1)
    probs = probs_BHQK.float() * pairs

    def mean_over_rows(rows_BHQ: Tensor) -> Tensor:
        return (rows_BHQ * rows_B1Q).sum(-1) / n_rows

    norms_BHK = values_BHKD.float().norm(dim=-1)
    median_BH = norms_BHK.masked_fill(~keys_B1K, torch.nan).nanmedian(dim=-1).values.clamp(min=1e-30)
    low_BHK = (norms_BHK < LOW_VALUE * median_BH[..., None]) & keys_B1K
    on_low_BHQ = (probs * low_BHK[:, :, None]).sum(-1)
    update_BH = mean_over_rows(update_BQHD.float().norm(dim=-1).transpose(1, 2))
    entropy_BHQ = -(probs * probs.clamp(min=1e-30).log()).sum(-1)
    largest_entropy = pairs.sum(-1).clamp(min=2).log()
    return {
        "no_op": mean_over_rows(on_low_BHQ) * (1 - update_BH / median_BH).clamp(0, 1),
        "sink": (probs.sum(2) / pairs.sum(2).clamp(min=1))
        .masked_fill(pairs.sum(2) < 0.25 * n_rows[..., None], 0)
        .amax(-1),
        "entropy": mean_over_rows(entropy_BHQ / largest_entropy),
        "zeros": ((probs == 0).float() * pairs).sum((-2, -1)) / n_pairs,
        "ones": ((probs == 1).float() * pairs).sum((-2, -1)) / n_pairs,
        "zero_rows": mean_over_rows((probs.sum(-1) == 0).float()),
    }


def mean_gate(gate_BTHn: Tensor, real_B1T: Tensor) -> Tensor:
    """The mean openness (B, H) of gates over the real tokens, which are queries or keys."""
    gate_BHT = gate_BTHn.float().mean(-1).transpose(1, 2)
    return (gate_BHT * real_B1T).sum(-1) / real_B1T.sum(-1).clamp(min=1)
