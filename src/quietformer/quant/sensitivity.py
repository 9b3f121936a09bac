"""Which tensors quantization hurts: the metric with each one alone, with all but each one, and the noise of each one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from quietformer.architectures.forward import Batch, run
from quietformer.errors import QuietformerError
from quietformer.progress import SILENT, Progress
from quietformer.quant.affine import fake_quantize
from quietformer.quant.calibration import full_precision, set_mode_
from quietformer.quant.insertion import quantizers, weight_of
from quietformer.quant.placement import QuantPlan, Site
from quietformer.quant.quantizer import Quantizer
from quietformer.results.quantize import Sensitivity, TensorSensitivity


@dataclass(frozen=True)
class Measure:
    """A metric of the model in its current state."""

    name: str
    better: str  # "higher" or "lower"
    value: Callable[[], float]


class _Noise:
    """The power of a tensor and of its quantization error."""

    def __init__(self, quantizer: Quantizer) -> None:
        self.quantizer = quantizer
        self.seen = 0
        self.signal = self.noise = 0.0

    def observe(self, x: Tensor) -> None:
        quantizer = self.quantizer
        x = x.detach().float()
        grid = quantizer.grid
        error = fake_quantize(x, quantizer.scale, quantizer.zero_point, bits=grid.bits, axis=grid.axis) - x
        self.signal += float(x.double().square().sum())
        self.noise += float(error.double().square().sum())
        self.seen += 1

    @property
    def decibels(self) -> float | None:
        """The signal-to-noise ratio; None where there is no error or no signal."""
        if not self.noise or not self.signal:
            return None
        return 10 * math.log10(self.signal / self.noise)


def signal_to_noise(model: PreTrainedModel, batches: Iterable[Batch]) -> dict[str, float | None]:
    """The signal-to-quantization-noise ratio of every calibrated tensor in decibels, with inputs in full precision."""
    placed = quantizers(model)
    noises = {site: _Noise(quantizer) for site, quantizer in placed.items()}
    with full_precision(model), torch.no_grad():
        try:
            for site, quantizer in placed.items():
                if site.endswith(":weight"):
                    noises[site].observe(weight_of(model, site))
                else:
                    quantizer.estimator, quantizer.mode = noises[site], "observe"  # type: ignore[assignment]
            for batch in batches:
                run(model, batch)
        finally:
            for quantizer in placed.values():
                quantizer.estimator = None
    return {site: noise.decibels for site, noise in noises.items()}


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
        noise = signal_to_noise(model, batches)
        for done, site in enumerate(plan.sites, start=1):
            set_mode_(model, "quantize", [site.name])
            only = measure.value()
            set_mode_(model, "quantize")
            set_mode_(model, "pass", [site.name])
            without = measure.value()
            set_mode_(model, "pass")
            rows.append(
                _row(site, placed[site.name], noise).model_copy(
                    update={"only": _finite(only), "without": _finite(without)}
                )
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
    noise = signal_to_noise(model, batches)
    placed = quantizers(model)
    rows = [_row(site, placed[site.name], noise) for site in plan.sites]
    rows.sort(key=lambda row: math.inf if row.sqnr_db is None else row.sqnr_db)
    return Sensitivity(measure=None, everything=None, nothing=None, rows=rows)


def _row(site: Site, quantizer: Quantizer, noise: dict[str, float | None]) -> TensorSensitivity:
    lo, hi = quantizer.range()
    return TensorSensitivity(
        site=site.name, short=site.short, role=site.role, grid=str(site.grid), lo=float(lo.min()), hi=float(hi.max()),
        sqnr_db=noise[site.name], only=None, without=None,
    )  # fmt: skip


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
