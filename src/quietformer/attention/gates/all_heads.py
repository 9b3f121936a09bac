"""One gate per head that reads the whole input."""

# B batch, Q queries, H heads, d input features (d_model), f input features per head, n outputs per head, D value features

from __future__ import annotations

from torch import Tensor, nn

from quietformer.attention.gates.base import Gate, SigmoidGateSpec
from quietformer.config.attention import HeadGeometry, gates


class AllHeadsGateModule(Gate):
    """One linear map from the whole input to all heads: n_heads (d_model + 1) parameters."""

    def __init__(self, spec: AllHeadsGate, geometry: HeadGeometry) -> None:
        super().__init__(spec)
        self.weight = self._weight(geometry.n_heads, geometry.d_model, fan_in=geometry.d_model)
        self.bias = self._bias(geometry.n_heads)

    def logits(self, inputs: Tensor) -> Tensor:
        return nn.functional.linear(inputs, self.weight, self.bias).unsqueeze(-1)


@gates.register("all_heads")
class AllHeadsGate(SigmoidGateSpec):
    """Every head's gate reads the whole input, including the features of other heads."""

    def build(self, geometry: HeadGeometry) -> Gate:
        return AllHeadsGateModule(self, geometry)
