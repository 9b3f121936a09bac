"""Gated attention (the paper's section 4.2): a head's output times sigmoid(G(x)) of the layer's input x."""

# B batch, Q queries, H heads, d input features (d_model), f those of one head, n hidden units, D value features

from __future__ import annotations

import math
from typing import Any, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from quietformer.attention.normalizer import accumulation_dtype
from quietformer.errors import SpecError
from quietformer.specs import GateSpec, HeadGeometry, gates

PRETRAINED_WEIGHT_STD = 0.01
"""The paper's spread of gate weights when fine-tuning: small, so that the gate starts near its bias."""


class SigmoidGateSpec(GateSpec):
    """What every gate shares: how open it starts, and what its sigmoid is multiplied by."""

    pi_init: float = Field(default=0.5, gt=0, lt=1, description="how open the gate starts: sigmoid(bias)")
    scale: float = Field(
        default=1.0, gt=0, description="multiplies the gate; 1/pi_init starts a pretrained model as it was"
    )
    weight_std: float | None = Field(
        default=None, ge=0, description="normal spread of the weights; by default uniform by fan-in"
    )

    @classmethod
    def for_pretrained(cls, *, pi_init: float = 0.5, **fields: Any) -> Self:
        """The paper's setting for fine-tuning: gates that start at about one."""
        settings: dict[str, Any] = {"pi_init": pi_init, "scale": 1 / pi_init, "weight_std": PRETRAINED_WEIGHT_STD}
        return cls(**(settings | fields))

    @property
    def bias_init(self) -> float:
        return math.log(self.pi_init / (1 - self.pi_init))


class Gate(nn.Module):
    """scale * sigmoid(G(x)); subclasses give G."""

    def __init__(self, spec: SigmoidGateSpec) -> None:
        super().__init__()
        self.spec = spec

    def logits(self, inputs_BQd: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, inputs_BQd: Tensor) -> Tensor:
        logits = self.logits(inputs_BQd)
        return self.spec.scale * torch.sigmoid(logits.to(accumulation_dtype(logits.dtype)))

    def _weight(self, *shape: int, fan_in: int) -> nn.Parameter:
        weight = torch.empty(shape)
        if self.spec.weight_std is None:
            nn.init.uniform_(weight, -(fan_in**-0.5), fan_in**-0.5)
        else:
            nn.init.normal_(weight, std=self.spec.weight_std)
        return nn.Parameter(weight)

    def _bias(self, *shape: int) -> nn.Parameter:
        return nn.Parameter(torch.full(shape, self.spec.bias_init))


def by_heads(inputs_BQd: Tensor, n_heads: int) -> Tensor:
    """The input as the paper reads it: (B, Q, H, f)."""
    return inputs_BQd.reshape(*inputs_BQd.shape[:-1], n_heads, -1)


class LinearGateModule(Gate):
    """One linear map a head on its own features: n_heads (d_head + 1) parameters."""

    def __init__(self, spec: LinearGate, geometry: HeadGeometry) -> None:
        super().__init__(spec)
        features = geometry.features_per_head("the linear gate")
        self.weight = self._weight(geometry.n_heads, features, fan_in=features)
        self.bias = self._bias(geometry.n_heads)

    def logits(self, inputs_BQd: Tensor) -> Tensor:
        x_BQHf = by_heads(inputs_BQd, self.weight.shape[0])
        return (torch.einsum("bqhf,hf->bqh", x_BQHf, self.weight) + self.bias).unsqueeze(-1)


@gates.register("linear")
class LinearGate(SigmoidGateSpec):
    """One linear map a head, reading that head's slice of the input."""

    def build(self, geometry: HeadGeometry) -> Gate:
        return LinearGateModule(self, geometry)


class MLPGateModule(Gate):
    """One ReLU network a head: n_heads (n_hid (d_head + 2) + 1) parameters."""

    def __init__(self, spec: MLPGate, geometry: HeadGeometry) -> None:
        super().__init__(spec)
        features = geometry.features_per_head("the mlp gate")
        heads, hidden = geometry.n_heads, spec.hidden
        self.weight_in = self._weight(heads, features, hidden, fan_in=features)
        self.bias_in = nn.Parameter(torch.zeros(heads, hidden))
        self.weight_out = self._weight(heads, hidden, fan_in=hidden)
        self.bias = self._bias(heads)

    def logits(self, inputs_BQd: Tensor) -> Tensor:
        x_BQHf = by_heads(inputs_BQd, self.weight_in.shape[0])
        hidden_BQHn = torch.relu(torch.einsum("bqhf,hfn->bqhn", x_BQHf, self.weight_in) + self.bias_in)
        return (torch.einsum("bqhn,hn->bqh", hidden_BQHn, self.weight_out) + self.bias).unsqueeze(-1)


@gates.register("mlp")
class MLPGate(SigmoidGateSpec):
    """One small ReLU network a head, reading that head's slice of the input."""

    hidden: int = Field(default=4, ge=1, description="hidden units a head (the paper's n_hid)")

    def build(self, geometry: HeadGeometry) -> Gate:
        return MLPGateModule(self, geometry)


class AllHeadsGateModule(Gate):
    """One linear map from the whole input to all heads: n_heads (d_model + 1) parameters."""

    def __init__(self, spec: AllHeadsGate, geometry: HeadGeometry) -> None:
        super().__init__(spec)
        self.weight = self._weight(geometry.n_heads, geometry.d_model, fan_in=geometry.d_model)
        self.bias = self._bias(geometry.n_heads)

    def logits(self, inputs_BQd: Tensor) -> Tensor:
        return nn.functional.linear(inputs_BQd, self.weight, self.bias).unsqueeze(-1)


@gates.register("all_heads")
class AllHeadsGate(SigmoidGateSpec):
    """Every head's gate reads the whole input, so heads may mix."""

    def build(self, geometry: HeadGeometry) -> Gate:
        return AllHeadsGateModule(self, geometry)


class ElementwiseGateModule(Gate):
    """One gate for each output feature, from the features of its own head."""

    def __init__(self, spec: ElementwiseGate, geometry: HeadGeometry) -> None:
        super().__init__(spec)
        if geometry.d_value is None:
            raise SpecError(
                "the elementwise gate needs the width of a head's output, which this layer does not tell; use linear"
            )
        features = geometry.features_per_head("the elementwise gate")
        self.weight = self._weight(geometry.n_heads, features, geometry.d_value, fan_in=features)
        self.bias = self._bias(geometry.n_heads, geometry.d_value)

    def logits(self, inputs_BQd: Tensor) -> Tensor:
        x_BQHf = by_heads(inputs_BQd, self.weight.shape[0])
        return torch.einsum("bqhf,hfd->bqhd", x_BQHf, self.weight) + self.bias


@gates.register("elementwise")
class ElementwiseGate(SigmoidGateSpec):
    """A gate for each feature of a head's output instead of one for the head."""

    def build(self, geometry: HeadGeometry) -> Gate:
        return ElementwiseGateModule(self, geometry)
