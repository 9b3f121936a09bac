"""The exponent of SmoothQuant for one group of linear layers, chosen by the error it leaves in their outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from quietformer.config.quantization import QuantSpec
from quietformer.quant.affine import fake_quantize, fake_quantize_tokens, qparams
from quietformer.transforms.channel_ranges import smoothing
from quietformer.transforms.smoothquant import Exponent

EXPONENTS = (0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8)
"""Past 0.8 a channel has hardly room above its largest value in calibration, and other text is clipped (docs/quantize.md)."""


def least_error_exponent(spec: QuantSpec) -> Exponent:
    """A chooser for `migrate_`: each exponent is tried on a sample of the input, with weights and input on their grids."""

    def choose(sample: Tensor, largest: Tensor, weights: list[Tensor]) -> float:
        exact = [sample @ weight for weight in weights]
        widest = torch.stack([weight.abs().amax(1) for weight in weights]).amax(0)
        errors = []
        for exponent in EXPONENTS:
            scale = smoothing(largest, widest, exponent).to(sample)
            rounded = _input_on_grid(sample / scale, spec)
            error = 0.0
            for weight, output in zip(weights, exact, strict=True):
                lost = (rounded @ _weight_on_grid(weight * scale[:, None], spec) - output).square().sum(1)
                # Relative to each token: what is large in one token must not hide the others.
                error += float((lost / output.square().sum(1).clamp(min=1e-12)).mean())
            errors.append(error)
        return EXPONENTS[min(range(len(errors)), key=errors.__getitem__)]

    return choose


def _input_on_grid(sample: Tensor, spec: QuantSpec) -> Tensor:
    bits = spec.activation_bits
    if spec.granularity == "token":
        return fake_quantize_tokens(sample, bits=bits)
    scale, zero_point = qparams(sample.amin(), sample.amax(), bits=bits, symmetric=spec.activation_symmetric)
    return fake_quantize(sample, scale, zero_point, bits=bits, axis=None)


def _weight_on_grid(weight: Tensor, spec: QuantSpec) -> Tensor:
    """Of a weight with its input channels first."""
    bits, axis = spec.weight_bits, 1 if spec.per_channel else None
    lo, hi = (weight.amin(0), weight.amax(0)) if spec.per_channel else (weight.amin(), weight.amax())
    scale, zero_point = qparams(lo, hi, bits=bits, symmetric=spec.weight_symmetric)
    return fake_quantize(weight, scale, zero_point, bits=bits, axis=axis)
