"""Gated attention (the paper's section 4.2): a head's output times sigmoid(G(x)) of the layer's input x."""

# B batch, Q queries, H heads, d input features (d_model), f those of one head, n outputs of a head's map, D value features

from __future__ import annotations

import math
from typing import Any, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from quietformer.attention.dtypes import accumulation_dtype
from quietformer.errors import SpecError
from quietformer.specs import GateSpec, HeadGeometry, gates

PRETRAINED_WEIGHT_STD = 0.01
"""The paper's spread of gate weights when fine-tuning: small, so that the gate starts near its bias."""

FEW_OUTPUTS = 64
"""Of all heads: with more of them the zeros of one product for all cost more than products for each."""


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


def for_all_features(weight_Hfn: Tensor) -> Tensor:
    """One map a head on its own features, as one map (H n, d) on all of them, zero elsewhere.

    Heads one by one are many small products; zeros in a single one cost less than starting them.
    """
    n_heads, features, outputs = weight_Hfn.shape
    own_HH = torch.eye(n_heads, dtype=weight_Hfn.dtype, device=weight_Hfn.device)
    spread_HnHf = own_HH[:, None, :, None] * weight_Hfn.transpose(1, 2)[:, :, None]
    return spread_HnHf.reshape(n_heads * outputs, n_heads * features)


def per_head(inputs_BQd: Tensor, weight_Hfn: Tensor, bias_Hn: Tensor) -> Tensor:
    """Each head's map of its slice of the input, as the paper has it: (B, Q, H, n)."""
    if bias_Hn.numel() > FEW_OUTPUTS:
        x_BQHf = inputs_BQd.reshape(*inputs_BQd.shape[:-1], *weight_Hfn.shape[:2])
        return torch.einsum("bqhf,hfn->bqhn", x_BQHf, weight_Hfn) + bias_Hn
    mapped = nn.functional.linear(inputs_BQd, for_all_features(weight_Hfn), bias_Hn.flatten())
    return mapped.reshape(*mapped.shape[:-1], *bias_Hn.shape)


class LinearGateModule(Gate):
    """One linear map a head on its own features: n_heads (d_head + 1) parameters."""

    def __init__(self, spec: LinearGate, geometry: HeadGeometry) -> None:
        super().__init__(spec)
        features = geometry.features_per_head("the linear gate")
        self.weight = self._weight(geometry.n_heads, features, fan_in=features)
        self.bias = self._bias(geometry.n_heads)

    def logits(self, inputs_BQd: Tensor) -> Tensor:
        return per_head(inputs_BQd, self.weight.unsqueeze(-1), self.bias.unsqueeze(-1))


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
        hidden_BQHn = torch.relu(per_head(inputs_BQd, self.weight_in, self.bias_in))
        return per_head(hidden_BQHn.flatten(-2), self.weight_out.unsqueeze(-1), self.bias.unsqueeze(-1))


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
        return per_head(inputs_BQd, self.weight, self.bias)


@gates.register("elementwise")
class ElementwiseGate(SigmoidGateSpec):
    """A gate for each feature of a head's output instead of one for the head."""

    def build(self, geometry: HeadGeometry) -> Gate:
        return ElementwiseGateModule(self, geometry)
