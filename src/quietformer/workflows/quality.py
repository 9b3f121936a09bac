"""One side of a before and after: a model's outliers, and what quantization, simulated and real, leaves of it."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from quietformer.analysis.evaluate import Reference, evaluate
from quietformer.analysis.inspection import inspect_model
from quietformer.analysis.outliers import TokenNames
from quietformer.analysis.quantized_quality import measure_seeds
from quietformer.config.options.verbs import OnnxOptions
from quietformer.config.quantization import QuantSpec
from quietformer.data.calibration_data import CalibrationData
from quietformer.errors import QuietformerError
from quietformer.quant.calibration import quantize_
from quietformer.results.quality import spreads

INSPECTED = 64
"""Sequences or images whose activations are looked at."""

CHECKED = 128
"""Sequences or images that an export is compared with its simulation on."""

WEIGHTS = {"per_tensor": False, "per_channel": True}

Tell = Callable[[str, int, int], None]


def look(model: PreTrainedModel, data: CalibrationData, name: str, tell: Tell) -> dict[str, Any]:
    """The figures of `quietformer inspect` on some of the evaluation data."""
    few = spread_over(data.evaluation, INSPECTED)
    return inspect_model(model, few, names=TokenNames.of(data.tokenizer), name=name).model_dump()


def measure_side(
    model: PreTrainedModel,
    data: CalibrationData,
    reference: Reference,
    inspected: dict[str, Any],
    *,
    seeds: int,
    real: bool,
    folder: Path | None,
    tell: Tell,
) -> dict[str, Any]:
    """Everything against the original; real INT8 with a scale for each channel of a weight stays in `folder`, if given."""
    floating = evaluate(
        model, data.evaluation, reference.task, reference,
    )  # fmt: skip
    side: dict[str, Any] = {
        "inspect": inspected,
        "float": floating.metrics.model_dump(),
        "simulated": {},
        "real": {"per_tensor": None, "per_channel": None, "latency": [], "bytes": {}, "agreement": None}
        if real
        else None,
    }
    for name, per_channel in WEIGHTS.items():
        quantized = copy.deepcopy(model)
        quantize_(quantized, QuantSpec(per_channel=per_channel), data.evaluation[0])
        runs = measure_seeds(quantized, data, reference, seeds)
        side["simulated"][name] = spreads([run.metrics for run in runs]).model_dump()
        if real:
            place = folder if per_channel else None
            try:
                found, about = real_integers(quantized, data, reference, place, timed=per_channel, tell=tell)
                side["real"] |= {name: found, **about}
            except QuietformerError as error:  # a graph that does not export is still simulated
                side["real"]["error"] = f"{name.replace('_', '-')} weights: {error}"
    return side


def real_integers(
    model: PreTrainedModel, data: CalibrationData, reference: Reference, folder: Path | None, *, timed: bool, tell: Tell
) -> tuple[dict[str, float | None], dict[str, Any]]:
    """The figures of the exported model, which stays in `folder` if one is given; and, if timed, what it takes."""
    from quietformer.deployment.onnx_export import export_onnx
    from quietformer.deployment.onnx_runtime import OnnxModel
    from quietformer.deployment.usage_note import INTEGER

    with tempfile.TemporaryDirectory() as scratch:
        place = folder or Path(scratch) / "int8"
        result = export_onnx(
            model,
            place,
            spread_over(data.evaluation, CHECKED),
            processor=data.tokenizer,
            options=OnnxOptions(timed=timed),
        )
        tell("evaluating real INT8", 0, 0)
        found = evaluate(
            OnnxModel(place / INTEGER, threads=torch.get_num_threads()), data.evaluation, reference.task, reference
        )
        about = {
            "latency": [row.model_dump() for row in result.latency],
            "bytes": result.bytes.model_dump(),
            "threads": result.threads,
            "agreement": {"cosine": result.cosine_to_simulation, "equal": result.equal_to_simulation},
        }
        return found.metrics.model_dump(), about if timed else {}


def spread_over(batches: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Whole batches with about so many sequences, of all lengths alike, the longest first, without labels."""
    size = len(next(iter(batches[0].values())))
    wanted = min(len(batches), max(1, -(-count // size)))
    places = {round(place * (len(batches) - 1) / max(1, wanted - 1)) for place in range(wanted)}
    return [
        {name: value for name, value in batches[place].items() if name != "labels"}
        for place in sorted(places, reverse=True)
    ]
