"""One gate per output feature."""

# B batch, Q queries, H heads, d input features (d_model), f input features per head, n outputs per head, D value features

from __future__ import annotations

from torch import Tensor

from quietformer.attention.gates.base import Gate, SigmoidGateSpec, per_head
from quietformer.config.attention import HeadGeometry, gates
from quietformer.errors import SpecError


class ElementwiseGateModule(Gate):
    """One gate per output feature, computed from the input features of its head."""

    def __init__(self, spec: ElementwiseGate, geometry: HeadGeometry) -> None:
        super().__init__(spec)
        if geometry.d_value is None:
            raise SpecError(
                "the elementwise gate needs the width of a head's output, which this layer does not say; use the linear gate"
            )
        features = geometry.features_per_head("the elementwise gate")
        self.weight = self._weight(geometry.n_heads, features, geometry.d_value, fan_in=features)
        self.bias = self._bias(geometry.n_heads, geometry.d_value)

    def logits(self, inputs: Tensor) -> Tensor:
        return per_head(inputs, self.weight, self.bias)


@gates.register("elementwise")
class ElementwiseGate(SigmoidGateSpec):
    """One gate per feature of a head's output instead of one per head."""

    def build(self, geometry: HeadGeometry) -> Gate:
        return ElementwiseGateModule(self, geometry)
