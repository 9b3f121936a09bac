"""Calibration of a part of a model, with the estimators and the bits of `calibrate_`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from quietformer.config.quantization import QuantSpec
from quietformer.quant.calibration import begin_batch_, observe_weights_, start_observing_
from quietformer.quant.insertion import quantizers
from quietformer.quant.quantizer import Quantizer


def calibrate_part_(
    model: nn.Module, placed: dict[str, Quantizer], spec: QuantSpec, runs: Sequence[Callable[[], object]]
) -> dict[str, Quantizer]:
    """Find the ranges of these quantizers while the runs are made, one a batch, in order.

    Returns those that have seen no data in them: the part of the model that was run does not have their tensors.
    """
    ranged = {site: quantizer for site, quantizer in placed.items() if not quantizer.grid.token}
    for quantizer in quantizers(model).values():
        quantizer.mode = "pass"
    start_observing_(ranged, spec)
    try:
        for run in runs:
            begin_batch_(ranged)
            run()
        observe_weights_(model, ranged)
        waiting = {
            site: quantizer
            for site, quantizer in ranged.items()
            if quantizer.estimator and not quantizer.estimator.seen
        }
        for site, quantizer in ranged.items():
            if site not in waiting:
                quantizer.set_range_(*quantizer.found_range())
    finally:
        for quantizer in ranged.values():
            quantizer.estimator, quantizer.mode = None, "pass"
    return waiting
