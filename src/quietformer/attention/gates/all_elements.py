"""One gate per output feature that reads the whole input: the element-wise gate of Qwen (Qiu et al., arXiv 2505.06708)."""

# B batch, Q queries, H heads, d input features (d_model), D value features

from __future__ import annotations

from torch import Tensor, nn

from quietformer.attention.gates.base import Gate, SigmoidGateSpec
from quietformer.config.attention import HeadGeometry, gates
from quietformer.errors import SpecError


class AllElementsGateModule(Gate):
    """One linear map from the whole input to all output features: n_heads d_value (d_model + 1) parameters."""

    def __init__(self, spec: AllElementsGate, geometry: HeadGeometry) -> None:
        super().__init__(spec)
        if geometry.d_value is None:
            raise SpecError(
                "the all_elements gate needs the width of a head's output, which this layer does not say; use the all_heads gate"
            )
        self.shape_HD = (geometry.n_heads, geometry.d_value)
        outputs = geometry.n_heads * geometry.d_value
        self.weight = self._weight(outputs, geometry.d_model, fan_in=geometry.d_model)
        self.bias = self._bias(outputs)

    def logits(self, inputs: Tensor) -> Tensor:
        logits = nn.functional.linear(inputs, self.weight, self.bias)
        return logits.view(*logits.shape[:-1], *self.shape_HD)


@gates.register("all_elements")
class AllElementsGate(SigmoidGateSpec):
    """Every output feature has a gate of its own, which reads the whole input."""

    def build(self, geometry: HeadGeometry) -> Gate:
        return AllElementsGateModule(self, geometry)
