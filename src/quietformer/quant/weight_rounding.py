"""Weight rounding with compensation (GPTQ): the error of each rounded weight is made up for by those not rounded yet.

Weights of a linear layer are rounded one input channel at a time. What the output loses by it, for inputs such as the calibration
data has, is taken over by the channels that follow. The grid stays as it is calibrated.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from quietformer.architectures.forward import Batch, in_eval_mode
from quietformer.architectures.watch_inputs import watch_inputs
from quietformer.quant.affine import levels
from quietformer.quant.calibration import full_precision
from quietformer.quant.insertion import quantizers
from quietformer.quant.quantizer import Quantizer

BLOCK = 128
"""Channels after which the error is handed on to all channels that follow at once, which is faster."""

DAMPING = 0.1
"""Share of the mean that is added to the diagonal, for channels that the calibration data hardly uses."""

WIDEST = 8192
"""Layers with more input channels are left to plain rounding: their matrix of products takes too long to invert."""

ROWS = 4
"""Rows of calibration data for each input channel; more change little and take longer."""


def round_weights_(model: PreTrainedModel, batches: list[Batch]) -> int:
    """Round every linear layer's weight to its calibrated grid, in place; returns how many there were."""
    placed = quantizers(model)
    layers = {
        module: placed[f"{name}:weight"]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and f"{name}:weight" in placed and module.in_features <= WIDEST
    }
    products = _products(model, list(layers), batches)
    with torch.no_grad():
        for module, quantizer in layers.items():
            if module in products:
                weight = module._parameters["weight"]
                assert weight is not None
                weight.copy_(compensated(weight, products[module], quantizer))
    return len(products)


def _products(model: PreTrainedModel, modules: list[nn.Module], batches: list[Batch]) -> dict[nn.Module, Tensor]:
    """X^T X of what every module reads, over a sample of all batches."""
    found: dict[nn.Module, Tensor] = {}

    def watch(module: nn.Module, rows: Tensor) -> None:
        wanted = ROWS * max(1024, rows.shape[1])
        some = rows[:: max(1, len(rows) * len(batches) // wanted)].float()
        found[module] = found[module].addmm_(some.T, some) if module in found else some.T @ some

    with full_precision(model), in_eval_mode(model), torch.no_grad():
        watch_inputs(model, modules, batches, watch)
    return found


def compensated(weight: Tensor, products: Tensor, quantizer: Quantizer) -> Tensor:
    """A weight (outputs, inputs) on its grid, rounded in the order of how much its inputs carry."""
    hessian = products.double()
    hessian.diagonal().add_(DAMPING * float(hessian.diagonal().mean()) + 1e-12)
    order = hessian.diagonal().argsort(descending=True)
    factor = torch.linalg.cholesky(hessian[order][:, order])
    inverse = torch.linalg.cholesky(torch.cholesky_inverse(factor), upper=True)
    scale, zero = quantizer.scale, quantizer.zero_point.double()
    # In steps of the grid, one row an input channel: what is worked on together then lies together.
    left = (weight.double() / _by_output(scale).double()).T[order].contiguous()
    rounded = torch.empty_like(left)
    for begin in range(0, len(left), BLOCK):
        end = min(begin + BLOCK, len(left))
        errors = torch.empty_like(left[begin:end])
        for row in range(begin, end):
            rounded[row] = left[row].round().clamp(-zero, levels(quantizer.grid.bits) - zero)
            errors[row - begin] = (left[row] - rounded[row]) / inverse[row, row]
            left[row:end] -= inverse[row, row:end, None] * errors[row - begin]
        left[end:] -= inverse[begin:end, end:].T @ errors
    # Multiplied in float32, as the quantizer does: rounded again, every weight stays what it is.
    return (rounded[order.argsort()].T.float() * _by_output(scale)).to(weight.dtype)


def _by_output(scale: Tensor) -> Tensor:
    return scale[:, None] if scale.dim() else scale
