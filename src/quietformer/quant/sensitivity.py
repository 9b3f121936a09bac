"""Which tensors quantization hurts: the metric with each one alone, with all but each one, and the noise of each one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from quietformer.architectures.forward import Batch, run
from quietformer.errors import QuietformerError
from quietformer.progress import SILENT, Progress
from quietformer.quant.calibration import full_precision, set_mode_
from quietformer.quant.insertion import quantizers, weight_of
from quietformer.quant.placement import QuantPlan, Site
from quietformer.quant.tensor_loss import TensorLoss
from quietformer.results.quantize import Sensitivity, TensorSensitivity


@dataclass(frozen=True)
class Measure:
    """A metric of the model in its current state."""

    name: str
    better: str  # "higher" or "lower"
    value: Callable[[], float]


def signal_to_noise(model: PreTrainedModel, batches: Iterable[Batch]) -> dict[str, float | None]:
    """The signal-to-quantization-noise ratio of every calibrated tensor in decibels, with inputs in full precision."""
    return {site: loss.decibels for site, loss in tensor_losses(model, batches).items()}


def tensor_losses(model: PreTrainedModel, batches: Iterable[Batch]) -> dict[str, TensorLoss]:
    """What the grid of every calibrated tensor takes from it, with inputs in full precision; one pass."""
    losses = {site: TensorLoss(quantizer) for site, quantizer in quantizers(model).items()}
    for site, loss in losses.items():
        if site.endswith(":weight"):
            loss.observe(weight_of(model, site))
    observe_tensors(model, {site: loss for site, loss in losses.items() if not site.endswith(":weight")}, batches)
    return losses


class Observer(Protocol):
    """Looks at what passes a quantizer."""

    def observe(self, x: Tensor) -> None: ...


def observe_tensors(model: PreTrainedModel, observers: Mapping[str, Observer], batches: Iterable[Batch]) -> None:
    """Show every observer its activation, as it is in full precision."""
    placed = quantizers(model)
    with full_precision(model), torch.no_grad():
        try:
            for site, observer in observers.items():
                placed[site].estimator, placed[site].mode = observer, "observe"  # type: ignore[assignment]
            for batch in batches:
                run(model, batch)
        finally:
            for site in observers:
                placed[site].estimator = None


def sensitivity(
    model: PreTrainedModel, plan: QuantPlan, batches: list[Batch], measure: Measure, *, progress: Progress = SILENT
) -> Sensitivity:
    """The metric with each tensor alone quantized, and with all but it quantized; the most harmful tensor first."""
    placed = quantizers(model)
    if any(not quantizer.calibrated for quantizer in placed.values()):
        raise QuietformerError("sensitivity needs a calibrated model; call calibrate_ first")
    everything = measure.value()
    with full_precision(model):
        nothing = measure.value()
        rows = []
        losses = tensor_losses(model, batches)
        for done, site in enumerate(plan.sites, start=1):
            set_mode_(model, "quantize", [site.name])
            only = measure.value()
            set_mode_(model, "quantize")
            set_mode_(model, "pass", [site.name])
            without = measure.value()
            set_mode_(model, "pass")
            rows.append(
                _row(site, losses[site.name]).model_copy(update={"only": _finite(only), "without": _finite(without)})
            )
            progress.step("measuring each tensor", done, len(plan.sites))

    def harm(row: TensorSensitivity) -> float:
        if row.only is None:
            return math.inf
        return nothing - row.only if measure.better == "higher" else row.only - nothing

    rows.sort(key=harm, reverse=True)
    sequences = sum(len(next(iter(batch.values()))) for batch in batches)
    return Sensitivity(
        measure=measure.name, sequences=sequences, everything=_finite(everything), nothing=_finite(nothing), rows=rows
    )


def noise_by_tensor(model: PreTrainedModel, plan: QuantPlan, batches: list[Batch]) -> Sensitivity:
    """The range and signal-to-noise ratio of every tensor, the noisiest first; cheap, one pass over the batches."""
    losses = tensor_losses(model, batches)
    rows = [_row(site, losses[site.name]) for site in plan.sites]
    rows.sort(key=lambda row: math.inf if row.sqnr_db is None else row.sqnr_db)
    return Sensitivity(measure=None, everything=None, nothing=None, rows=rows)


def _row(site: Site, loss: TensorLoss) -> TensorSensitivity:
    if site.grid.token:
        lo, hi = loss.lo, loss.hi  # every token has a range of its own; together they reach so far
    else:
        lowest, highest = loss.quantizer.range()
        lo, hi = float(lowest.min()), float(highest.max())
    return TensorSensitivity(
        site=site.name, short=site.short, role=site.role, grid=str(site.grid), lo=lo, hi=hi, sqnr_db=loss.decibels,
        token_spread=loss.token_spread, **dict(loss.rounded_to_zero()),
    )  # fmt: skip


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
