"""Which activations would lose less with another range: proposals for a search, from one pass in full precision."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from quietformer.architectures.forward import Batch
from quietformer.quant.affine import fake_quantize
from quietformer.quant.insertion import quantizers
from quietformer.quant.quantizer import Quantizer
from quietformer.quant.sensitivity import observe_tensors

Range = tuple[Tensor, Tensor]
"""The bit pattern of a scale, and the zero point, as a quantizer stores them."""

LEAST_GAIN = 0.02
"""A range is proposed if it takes away at least this share of the tensor's error."""


@dataclass(frozen=True)
class Proposal:
    """Another range for one tensor, and the share of that tensor's error that it leaves."""

    site: str
    name: str
    left: float


def proposals(model: PreTrainedModel, candidates: dict[str, dict[str, Range]], batches: list[Batch]) -> list[Proposal]:
    """The best candidate of every activation that has one, those that gain most first.

    The error is relative to each token, so that a few tokens with large values do not decide for all others. Whether
    those few matter to the model is for the search to find out.
    """
    names = list(candidates)
    errors = {
        site: _TokenErrors(quantizer, [_range_of(quantizer), *(candidates[name][site] for name in names)])
        for site, quantizer in quantizers(model).items()
        if not site.endswith(":weight") and all(site in ranges for ranges in candidates.values())
    }
    observe_tensors(model, errors, batches)
    found = []
    for site, error in errors.items():
        now, *others = error.total
        best = min(range(len(others)), key=others.__getitem__)
        if others[best] < (1 - LEAST_GAIN) * now:
            found.append(Proposal(site, names[best], others[best] / now))
    return sorted(found, key=lambda one: one.left)


def _range_of(quantizer: Quantizer) -> Range:
    return quantizer.scale_pattern.clone(), quantizer.zero_point.clone()


class _TokenErrors:
    """The error that each range leaves, relative to each token; it observes as a range estimator does."""

    def __init__(self, quantizer: Quantizer, ranges: list[Range]) -> None:
        self.quantizer, self.bits = quantizer, quantizer.grid.bits
        self.axis = 2 if quantizer.grid.heads is not None else quantizer.grid.axis
        self.grids = [(pattern.view(torch.float32), zero_point) for pattern, zero_point in ranges]
        self.total = [0.0] * len(ranges)

    def observe(self, x: Tensor) -> None:
        if not x.numel():  # an expert may get no tokens
            return
        x = x.detach().float()
        energy = x.square().sum(-1).clamp_(min=1e-12)
        for place, (scale, zero_point) in enumerate(self.grids):
            if self.quantizer.grid.passes is not None:
                now = self.quantizer.place
                scale, zero_point = scale[now], zero_point[now]
            lost = (fake_quantize(x, scale, zero_point, bits=self.bits, axis=self.axis) - x).square_().sum(-1)
            self.total[place] += float((lost / energy).sum(dtype=torch.float64))
