"""Finds tensors of which a grid leaves almost nothing, and measures what helps them.

The case in point is an elementwise gate: it makes a few tokens hundreds of times larger than all others, a scale for the whole
tensor fits these, and the rest becomes zero. Neither outlier metrics nor attention sinks tell.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from quietformer.analysis.recorder import with_cores
from quietformer.architectures.forward import Batch, in_eval_mode
from quietformer.config.quantization import QuantSpec, estimators, placements
from quietformer.config.recorded_changes import changes_of
from quietformer.errors import QuietformerError
from quietformer.quant.affine import fake_quantize, fake_quantize_tokens, qparams
from quietformer.quant.calibration import calibrate_, dequantize_, quantize_
from quietformer.quant.insertion import quantizers
from quietformer.quant.placement import ALWAYS_TAPPED, CHANNELS_FIRST, QuantPlan, Site
from quietformer.quant.quantizer import Quantizer
from quietformer.quant.sensitivity import noise_by_tensor, observe_tensors
from quietformer.quant.tensor_loss import TensorLoss
from quietformer.results.annihilation import AnnihilatedTensor, Remedy
from quietformer.results.quantize import TensorSensitivity
from quietformer.transforms.channel_ranges import smoothing

EXPONENTS = (0.5, 0.65, 0.8)
"""Exponents of SmoothQuant that are tried; the search of `export` tries more."""

ENOUGH = 0.1
"""A remedy helps if tokens and channels lose no more than this share of their energy."""

KEPT_ROWS = 4096
"""Tokens of a tensor, per batch, on which remedies are measured."""


def find_annihilated(model: PreTrainedModel, batches: list[Batch]) -> list[AnnihilatedTensor] | None:
    """What INT8 with one scale per tensor would annihilate among the inputs of matrix products; the model stays as it is.

    None for a model that cannot be quantized. A model that is quantized already is judged by its own quantizers.
    """
    with in_eval_mode(model), with_cores(model) as seen:
        if (quantized := changes_of(model).quantized) is not None:
            sites = [Site(name, name, _role(name), quantizer.grid) for name, quantizer in quantizers(model).items()]
            plan = QuantPlan(quantized.spec, sites)
            return annihilated_tensors(model, noise_by_tensor(model, plan, batches).rows, batches)
        if not seen:
            return None
        try:
            spec = QuantSpec(placement=placements["matmul"](), activations=estimators["minmax"]())
            plan = quantize_(model, spec, batches[0])
        except QuietformerError:
            return None
        try:
            calibrate_(model, batches)
            return annihilated_tensors(model, noise_by_tensor(model, plan, batches).rows, batches)
        finally:
            dequantize_(model)


def annihilated_tensors(
    model: PreTrainedModel, rows: list[TensorSensitivity], batches: list[Batch]
) -> list[AnnihilatedTensor]:
    """The annihilated among the tensors that were measured, the worst first; one more pass if there are any."""
    bad = [row for row in rows if row.annihilated]
    if not bad:
        return []
    kept, placed = {row.site: _Kept() for row in bad}, quantizers(model)
    observe_tensors(model, kept, batches)
    found = []
    for row in bad:
        remedies = _remedies(model, placed[row.site], torch.cat(kept[row.site].rows))
        found.append(
            AnnihilatedTensor(
                site=row.site, short=row.short, zeroed=row.zeroed, lost_by_token=row.lost_by_token,
                lost_by_channel=row.lost_by_channel, token_spread=row.token_spread, remedies=remedies,
                advice=_advice(row.short, remedies),
            )
        )  # fmt: skip
    return sorted(found, key=lambda tensor: (-(tensor.lost_by_token or 0.0), -(tensor.zeroed or 0.0)))


def _role(site: str) -> Literal["weight", "activation"]:
    return "weight" if site.endswith(":weight") else "activation"


class _Kept:
    """Keeps what passes a quantizer, one row a token."""

    def __init__(self) -> None:
        self.rows: list[Tensor] = []

    def observe(self, x: Tensor) -> None:
        rows = x.detach().float().flatten(0, -2)
        self.rows.append(rows[:: max(1, len(rows) // KEPT_ROWS)].clone())


def _remedies(model: PreTrainedModel, quantizer: Quantizer, rows: Tensor) -> list[Remedy]:
    """What is left of the tensor with smoothing, and with a scale per token, where they apply."""
    found = []
    owner, _, what = quantizer.site.rpartition(":")
    module = model.get_submodule(owner)
    if what == "input" and isinstance(module, nn.Linear):
        weight = module._parameters["weight"]
        assert weight is not None
        tried = [_measured("smoothing", quantizer, *_smoothed(rows, weight, quantizer, each)) for each in EXPONENTS]
        found.append(min(tried, key=_lost))
    # Inside attention there are no scales per token, and a convolution has its channels first.
    if what not in ALWAYS_TAPPED and not isinstance(module, CHANNELS_FIRST) and not quantizer.grid.token:
        rounded = fake_quantize_tokens(rows, bits=quantizer.grid.bits)
        found.append(_measured("per token", quantizer, rows, rounded))
    return found


def _smoothed(rows: Tensor, weight: Tensor, quantizer: Quantizer, exponent: float) -> tuple[Tensor, Tensor]:
    scale = smoothing(rows.abs().amax(0), weight.detach().abs().amax(0), exponent).to(rows)
    smooth, grid = rows / scale, quantizer.grid
    if grid.token:
        return smooth, fake_quantize_tokens(smooth, bits=grid.bits)
    step, zero = qparams(smooth.amin(), smooth.amax(), bits=grid.bits, symmetric=grid.symmetric)
    return smooth, fake_quantize(smooth, step, zero, bits=grid.bits)


def _measured(name: str, quantizer: Quantizer, rows: Tensor, rounded: Tensor) -> Remedy:
    loss = TensorLoss(quantizer)
    loss.add(rows, rounded)
    return Remedy(name=name, **dict(loss.rounded_to_zero()))


def _lost(remedy: Remedy) -> float:
    return max(remedy.lost_by_token or 0.0, remedy.lost_by_channel or 0.0)


def _advice(short: str, remedies: list[Remedy]) -> str:
    """The first remedy that helps, free ones first; else full precision, which loses nothing."""
    words = {"smoothing": "smoothing, which `export` tries by itself", "per token": "--granularity token"}
    helps = [remedy.name for remedy in remedies if _lost(remedy) <= ENOUGH]
    return words[helps[0]] if helps else f"--keep '{short}'"
