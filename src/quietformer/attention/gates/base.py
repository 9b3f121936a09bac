"""Gated attention (the paper's section 4.2): a head's output, or its values, times sigmoid(G(x))."""

# B batch, Q queries, H heads, d input features (d_model), f input features per head, n outputs per head, D value features

from __future__ import annotations

import math
from typing import Any, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from quietformer.attention.dtypes import accumulation_dtype
from quietformer.config.attention import GateSpec

PRETRAINED_WEIGHT_STD = 0.01
"""The paper's standard deviation of gate weights for fine-tuning: small, so that the gate starts near its bias."""

FEW_OUTPUTS = 64
"""Up to this many outputs of all heads, one block-diagonal product is faster than one product per head."""


class SigmoidGateSpec(GateSpec):
    """Fields that all gates share."""

    pi_init: float = Field(default=0.5, gt=0, lt=1, description="how open the gate starts: sigmoid(bias)")
    scale: float = Field(
        default=1.0, gt=0, description="multiplies the gate; 1/pi_init starts a pretrained model as it was"
    )
    weight_std: float | None = Field(
        default=None, ge=0, description="standard deviation of normal initial weights; default: uniform by fan-in"
    )

    @classmethod
    def for_pretrained(cls, *, pi_init: float = 0.5, **fields: Any) -> Self:
        """The paper's settings for fine-tuning a pretrained model: gates that start near one."""
        settings: dict[str, Any] = {"pi_init": pi_init, "scale": 1 / pi_init, "weight_std": PRETRAINED_WEIGHT_STD}
        return cls(**(settings | fields))

    @property
    def bias_init(self) -> float:
        return math.log(self.pi_init / (1 - self.pi_init))


class Gate(nn.Module):
    """scale * sigmoid(G(x)); subclasses define G as `logits`.

    x is the layer's input (B, Q, d), and the gates scale the heads' outputs. With `of_values` x is the values (B, H, K, D) of
    all heads, and the gates (B, H, K, 1 or D) scale these.
    """

    of_values = False

    def __init__(self, spec: SigmoidGateSpec) -> None:
        super().__init__()
        self.spec = spec

    def logits(self, inputs: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, inputs: Tensor) -> Tensor:
        logits = self.logits(inputs)
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
    """The maps of all heads, each on its own features, as one block-diagonal matrix (H n, d).

    One product with many zeros is faster than many small products.
    """
    n_heads, features, outputs = weight_Hfn.shape
    own_HH = torch.eye(n_heads, dtype=weight_Hfn.dtype, device=weight_Hfn.device)
    spread_HnHf = own_HH[:, None, :, None] * weight_Hfn.transpose(1, 2)[:, :, None]
    return spread_HnHf.reshape(n_heads * outputs, n_heads * features)


def per_head(inputs_BQd: Tensor, weight_Hfn: Tensor, bias_Hn: Tensor) -> Tensor:
    """Each head's map of its own slice of the input, as in the paper: (B, Q, H, n)."""
    if bias_Hn.numel() > FEW_OUTPUTS:
        x_BQHf = inputs_BQd.reshape(*inputs_BQd.shape[:-1], *weight_Hfn.shape[:2])
        return torch.einsum("bqhf,hfn->bqhn", x_BQHf, weight_Hfn) + bias_Hn
    mapped = nn.functional.linear(inputs_BQd, for_all_features(weight_Hfn), bias_Hn.flatten())
    return mapped.reshape(*mapped.shape[:-1], *bias_Hn.shape)
