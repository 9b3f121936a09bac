"""Bias correction: the mean error that quantization leaves in the output of a projection is taken off its bias.

Rounding of weights and of inputs shifts the mean of every output a little, always to the same side, and such shifts add up over
layers. The shift is known from the calibration data: W E[x] - Q(W) E[Q(x)]. Nothing is added at run time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from quietformer.architectures.forward import Batch, in_eval_mode
from quietformer.architectures.watch_inputs import watch_inputs
from quietformer.quant.calibration import full_precision
from quietformer.quant.insertion import quantizers
from quietformer.quant.quantizer import Quantizer


@dataclass
class _Means:
    """Sums of what a projection reads, as it is and on its grid."""

    projection: nn.Linear
    weight: Quantizer
    input: Quantizer
    real: Tensor | float = 0.0
    rounded: Tensor | float = 0.0
    rows: int = 0

    def add(self, rows: Tensor) -> None:
        self.real = self.real + rows.double().sum(0)
        self.rounded = self.rounded + self.input.rounded(rows).double().sum(0)
        self.rows += len(rows)

    def shift(self) -> Tensor:
        """What quantization takes off the mean output."""
        weight = self.projection._parameters["weight"]
        assert weight is not None
        real, rounded = torch.as_tensor(self.real) / self.rows, torch.as_tensor(self.rounded) / self.rows
        return weight.double() @ real - self.weight.rounded(weight).double() @ rounded


def correct_biases_(model: PreTrainedModel, batches: list[Batch]) -> int:
    """Correct the bias of every linear layer whose weight and input are quantized; returns how many were."""
    placed = quantizers(model)
    means: dict[nn.Module, _Means] = {}
    for name, module in model.named_modules():
        weight, read = placed.get(f"{name}:weight"), placed.get(f"{name}:input")
        if isinstance(module, nn.Linear) and module.bias is not None and weight is not None and read is not None:
            means[module] = _Means(module, weight, read)

    with full_precision(model), in_eval_mode(model), torch.no_grad():
        watch_inputs(model, means, batches, lambda module, rows: means[module].add(rows))
    seen = [mean for mean in means.values() if mean.rows]
    with torch.no_grad():
        for mean in seen:
            mean.projection.bias.add_(mean.shift().to(mean.projection.bias))
    return len(seen)
