"""One linear map per head."""

# B batch, Q queries, H heads, d input features (d_model), f input features per head, n outputs per head, D value features

from __future__ import annotations

from torch import Tensor

from quietformer.attention.gates.base import Gate, SigmoidGateSpec, per_head
from quietformer.config.attention import HeadGeometry, gates


class LinearGateModule(Gate):
    """One linear map per head on its own features: n_heads (d_head + 1) parameters."""

    def __init__(self, spec: LinearGate, geometry: HeadGeometry) -> None:
        super().__init__(spec)
        features = geometry.features_per_head("the linear gate")
        self.weight = self._weight(geometry.n_heads, features, fan_in=features)
        self.bias = self._bias(geometry.n_heads)

    def logits(self, inputs: Tensor) -> Tensor:
        return per_head(inputs, self.weight.unsqueeze(-1), self.bias.unsqueeze(-1))


@gates.register("linear")
class LinearGate(SigmoidGateSpec):
    """One linear map per head, which reads that head's slice of the input."""

    def build(self, geometry: HeadGeometry) -> Gate:
        return LinearGateModule(self, geometry)
