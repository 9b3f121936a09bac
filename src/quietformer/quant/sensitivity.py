"""Which tensors quantization hurts: each alone, all but each, and how much noise each one gets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from quietformer.architectures.forward import Batch, run
from quietformer.errors import QuietformerError
from quietformer.quant.affine import fake_quantize
from quietformer.quant.calibration import floating_point, set_mode_
from quietformer.quant.insertion import quantizers, weight_of
from quietformer.quant.placement import QuantPlan
from quietformer.quant.quantizer import Quantizer

Measure = Callable[[], float]


class _Noise:
    """Power of a signal and of what its quantizer would take from it."""

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
        """None where nothing is lost, or nothing passed."""
        if not self.noise or not self.signal:
            return None
        return 10 * math.log10(self.signal / self.noise)


def signal_to_noise(model: PreTrainedModel, batches: Iterable[Batch]) -> dict[str, float | None]:
    """Of every calibrated site the ratio in decibels, its input being the floating point model's."""
    placed = quantizers(model)
    noises = {site: _Noise(quantizer) for site, quantizer in placed.items()}
    with floating_point(model), torch.no_grad():
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
    model: PreTrainedModel,
    plan: QuantPlan,
    batches: list[Batch],
    measure: Measure,
    *,
    higher_is_better: bool,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """For each site what the model measures with it alone quantized and with it alone spared; the most harmful first."""
    if any(not quantizer.calibrated for quantizer in quantizers(model).values()):
        raise QuietformerError("sensitivity needs a calibrated model; call calibrate_ first")
    placed = quantizers(model)
    everything = measure()
    with floating_point(model):
        nothing = measure()
        rows = []
        noise = signal_to_noise(model, batches)
        for done, site in enumerate(plan.sites, start=1):
            set_mode_(model, "quantize", [site.name])
            only = measure()
            set_mode_(model, "quantize")
            set_mode_(model, "pass", [site.name])
            without = measure()
            set_mode_(model, "pass")
            lo, hi = placed[site.name].range()
            rows.append({
                "site": site.name, "short": site.short, "role": site.role, "grid": str(site.grid),
                "lo": float(lo.min()), "hi": float(hi.max()), "sqnr_db": noise[site.name],
                "only": _finite(only), "without": _finite(without),
            })  # fmt: skip
            progress(done)

    def harm(row: dict[str, Any]) -> float:
        if row["only"] is None:
            return math.inf
        return float(nothing - row["only"] if higher_is_better else row["only"] - nothing)

    rows.sort(key=harm, reverse=True)
    return {"everything": _finite(everything), "nothing": _finite(nothing), "rows": rows}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
