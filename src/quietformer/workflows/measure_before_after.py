"""One side of a before and after: a model's outliers, and what quantization, simulated and real, leaves of it."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from quietformer.analysis.evaluate import Reference, evaluate
from quietformer.analysis.inspection import inspect_model
from quietformer.analysis.outliers import TokenNames
from quietformer.analysis.repeated_quantization import measure_seeds
from quietformer.architectures.forward import Batch
from quietformer.config.options.export import OnnxOptions
from quietformer.config.quantization import QuantSpec
from quietformer.data.calibration_data import CalibrationData
from quietformer.errors import QuietformerError
from quietformer.progress import SILENT, Progress
from quietformer.quant.calibration import quantize_
from quietformer.results.before_after import RealSide, Side
from quietformer.results.export import ExportFacts
from quietformer.results.inspect import InspectReport
from quietformer.results.quality import ByGranularity, Metrics, Spreads, spreads

INSPECTED = 64
"""Sequences or images whose activations are inspected."""

CHECKED = 128
"""Sequences or images that an export is compared with its simulation on."""


@dataclass(frozen=True)
class Measuring:
    """What all models of one before and after are measured by: the data, the original's answers, and how often."""

    data: CalibrationData
    reference: Reference
    seeds: int
    progress: Progress = SILENT


@dataclass(frozen=True)
class Exported:
    """An exported model: its metrics, what it takes, and how close it is to its simulation."""

    metrics: Metrics
    facts: ExportFacts


def inspect_some(
    model: PreTrainedModel, data: CalibrationData, name: str, progress: Progress = SILENT
) -> InspectReport:
    """The report of `inspect` on some of the evaluation data."""
    few = spread_over(data.evaluation, INSPECTED)
    return inspect_model(model, few, names=TokenNames.of(data.tokenizer), name=name, progress=progress)


def measure_side(
    model: PreTrainedModel, inspected: InspectReport, by: Measuring, *, real: bool, folder: Path | None = None
) -> Side:
    """Everything against the original; real INT8 with per-channel weights stays in `folder`, if one is given."""
    fp32 = evaluate(
        model, by.data.evaluation, by.reference.task, by.reference, progress=by.progress, what="evaluating in fp32"
    )
    found = RealSide()
    simulated: dict[str, Spreads] = {}
    for name, per_channel in (("per_tensor", False), ("per_channel", True)):
        quantized = quantized_copy(model, by, per_channel=per_channel)
        simulated[name] = _over_seeds(quantized, by, by.seeds)
        if not real:
            continue
        try:
            exported = export_and_measure(quantized, by, folder if per_channel else None, timed=per_channel)
            found = found.model_copy(update={name: exported.metrics, **(dict(exported.facts) if per_channel else {})})
        except QuietformerError as error:  # a graph that does not export is still simulated
            found = found.model_copy(update={"error": f"{name.replace('_', '-')} weights: {error}"})
    return Side(inspect=inspected, fp32=fp32.metrics, simulated=ByGranularity[Spreads](**simulated), real=found)


def simulate_both(model: PreTrainedModel, by: Measuring) -> ByGranularity[Spreads]:
    """Simulated INT8 with weights per tensor and per channel, calibrated once."""
    return ByGranularity[Spreads](
        per_tensor=_over_seeds(quantized_copy(model, by, per_channel=False), by, 1),
        per_channel=_over_seeds(quantized_copy(model, by, per_channel=True), by, 1),
    )


def quantized_copy(model: PreTrainedModel, by: Measuring, *, per_channel: bool) -> PreTrainedModel:
    quantized = copy.deepcopy(model)
    quantize_(quantized, QuantSpec(per_channel=per_channel), by.data.evaluation[0])
    return quantized


def _over_seeds(model: PreTrainedModel, by: Measuring, seeds: int) -> Spreads:
    runs = measure_seeds(model, by.data, by.reference, seeds, by.progress)
    return spreads([run.metrics for run in runs])


def export_and_measure(model: PreTrainedModel, by: Measuring, folder: Path | None, *, timed: bool) -> Exported:
    """Export a calibrated model and evaluate it in ONNX Runtime; it stays in `folder`, if one is given."""
    from quietformer.deployment.onnx_export import export_onnx
    from quietformer.deployment.onnx_runtime import OnnxModel
    from quietformer.deployment.usage_note import INTEGER

    data, reference = by.data, by.reference
    with tempfile.TemporaryDirectory() as scratch:
        place = folder or Path(scratch) / "int8"
        few = spread_over(data.evaluation, CHECKED)
        details = export_onnx(
            model, place, few, data.tokenizer, OnnxOptions(timed=timed, runtime="onnxruntime"), by.progress
        )
        session = OnnxModel(place / INTEGER, threads=torch.get_num_threads())
        what = "evaluating real INT8"
        found = evaluate(session, data.evaluation, reference.task, reference, progress=by.progress, what=what)
        return Exported(found.metrics, details.facts())


def spread_over(batches: Sequence[Batch], count: int) -> list[Batch]:
    """Whole batches with about so many sequences, of all lengths alike, the longest first, without labels."""
    size = len(next(iter(batches[0].values())))
    wanted = min(len(batches), max(1, -(-count // size)))
    places = {round(place * (len(batches) - 1) / max(1, wanted - 1)) for place in range(wanted)}
    return [
        {name: value for name, value in batches[place].items() if name != "labels"}
        for place in sorted(places, reverse=True)
    ]
