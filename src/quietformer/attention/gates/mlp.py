"""One small network per head."""

# B batch, Q queries, H heads, d input features (d_model), f input features per head, n outputs per head, D value features

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from quietformer.attention.gates.base import Gate, SigmoidGateSpec, per_head
from quietformer.config.attention import HeadGeometry, gates


class MLPGateModule(Gate):
    """One ReLU network per head: n_heads (n_hid (d_head + 2) + 1) parameters."""

    def __init__(self, spec: MLPGate, geometry: HeadGeometry) -> None:
        super().__init__(spec)
        features = geometry.features_per_head("the mlp gate")
        heads, hidden = geometry.n_heads, spec.hidden
        self.weight_in = self._weight(heads, features, hidden, fan_in=features)
        self.bias_in = nn.Parameter(torch.zeros(heads, hidden))
        self.weight_out = self._weight(heads, hidden, fan_in=hidden)
        self.bias = self._bias(heads)

    def logits(self, inputs: Tensor) -> Tensor:
        hidden_BQHn = torch.relu(per_head(inputs, self.weight_in, self.bias_in))
        return per_head(hidden_BQHn.flatten(-2), self.weight_out.unsqueeze(-1), self.bias.unsqueeze(-1))


@gates.register("mlp")
class MLPGate(SigmoidGateSpec):
    """One small ReLU network per head, which reads that head's slice of the input."""

    hidden: int = Field(default=4, ge=1, description="hidden units per head (the paper's n_hid)")

    def build(self, geometry: HeadGeometry) -> Gate:
        return MLPGateModule(self, geometry)
