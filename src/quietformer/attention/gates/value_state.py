"""Value-state gates (Bu et al., arXiv 2510.09017): what a token contributes is scaled by a function of its own value."""

# B batch, H heads, K keys, D value features

from __future__ import annotations

import torch
from torch import Tensor

from quietformer.attention.gates.base import Gate, SigmoidGateSpec
from quietformer.config.attention import HeadGeometry, gates
from quietformer.errors import SpecError


class ValueStateGateModule(Gate):
    """One linear map per head on the values: n_heads (d_value + 1) parameters. The gates scale the values themselves."""

    of_values = True

    def __init__(self, spec: ValueStateGate, geometry: HeadGeometry) -> None:
        super().__init__(spec)
        if geometry.d_value is None:
            raise SpecError(
                "the value_state gate needs the width of the values, which this layer does not say; use the linear gate"
            )
        self.weight = self._weight(geometry.n_heads, geometry.d_value, fan_in=geometry.d_value)
        self.bias = self._bias(geometry.n_heads)

    def logits(self, inputs: Tensor) -> Tensor:
        logits_BHK = torch.einsum("bhkd,hd->bhk", inputs, self.weight) + self.bias[:, None]
        return logits_BHK.unsqueeze(-1)


@gates.register("value_state")
class ValueStateGate(SigmoidGateSpec):
    """Each key's value is scaled by a gate that reads this value, so a token can take itself out of all sums."""

    def build(self, geometry: HeadGeometry) -> Gate:
        return ValueStateGateModule(self, geometry)
