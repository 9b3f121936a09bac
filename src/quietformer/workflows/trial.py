"""One run of a study: trained, looked at, quantized and exported under the same conditions as all the others."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from quietformer.analysis.evaluate import Reference, reference_run
from quietformer.analysis.quantized_quality import measure_seeds
from quietformer.architectures.task import task_of
from quietformer.config.study import EXPORTED, Measures, Trial, quantization
from quietformer.data.calibration_data import CalibrationData
from quietformer.data.measuring_data import validation_data
from quietformer.errors import QuietformerError
from quietformer.files import finite, write_json
from quietformer.models.open import open_model
from quietformer.quant.calibration import quantize_
from quietformer.report.page import write_page
from quietformer.results.provenance import versions
from quietformer.results.quality import spreads
from quietformer.training.run import train
from quietformer.workflows.measure_side import Measuring, export_and_measure, inspect_some

TRIAL, PAGE, INTEGERS = "trial.json", "inspect.html", "int8"
"""Files of the run folder: the trial's figures, the page of its activations, and the folder with real INT8."""

NEEDED = {
    "at", "attention", "beside", "better", "curve", "data", "float", "name", "outliers", "paper", "parameters", "primary",
    "quantized", "real", "seconds", "seed", "steps", "task",
}  # fmt: skip
"""What a table is made of."""

CURVE = 200
"""Points of a curve that are kept."""

Tell = Callable[[str, int, int], None]


@dataclass(frozen=True)
class _Told:
    """Two callbacks as one progress object."""

    say: Callable[[str], None]
    step: Callable[..., None]


def run_trial(
    trial: Trial, measures: Measures, folder: Path, *, say: Callable[[str], None], tell: Tell
) -> dict[str, Any]:
    """Train and measure, or go on with it; what is finished is read and not computed again."""
    recipe, key = trial.recipe, trial_key(trial, measures)
    if (kept := finished_trial(folder / TRIAL, key)) is not None:
        return kept
    trained = train(recipe, folder, _Told(say, tell))
    model = open_model(str(folder))
    data = validation_data(recipe, folder, model, measures.sequences)
    figures = {
        "version": 1,
        "kind": "trial",
        "key": key,
        "name": trial.name,
        "at": trial.at,
        "seed": trial.seed,
        "attention": trained.attention,
        "parameters": trained.parameters,
        "steps": trained.steps,
        "seconds": trained.seconds,
        "beside": {
            name: value
            for name in ("bigram_perplexity", "majority_accuracy")
            if (value := getattr(trained, name)) is not None
        },
        "outliers": {"unknown": trained.outliers_unknown}
        if trained.outliers is None
        else trained.outliers.model_dump(),
        "curve": curve(trained.log),
        "paper": trained.paper,
        **_measure(model, data, measures, folder, trial.name, tell),
        "data": data.info.model_dump(),
        "versions": versions(),
    }
    written: dict[str, Any] = finite(figures)
    write_json(folder / TRIAL, written)
    return written


def trial_key(trial: Trial, measures: Measures) -> dict[str, Any]:
    """What figures must have been made with to count as this trial's, as JSON gives it back."""
    key: dict[str, Any] = json.loads(json.dumps({"recipe": trial.recipe.to_dict(), "measures": measures.to_dict()}))
    return key


def finished_trial(path: Path, key: dict[str, Any]) -> dict[str, Any] | None:
    """What the file says of a trial, if it is of this one and says it all."""
    try:
        figures = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(figures, dict) or figures.get("key") != key:
        return None
    return figures if figures.keys() >= ({"name", "at", "seed"} if "failed" in figures else NEEDED) else None


def _measure(
    model: PreTrainedModel, data: CalibrationData, measures: Measures, folder: Path, name: str, tell: Tell
) -> dict[str, Any]:
    reference = reference_run(model, data.evaluation, task_of(model))
    if measures.pages:
        write_page(inspect_some(model, data, name), folder / PAGE)
    evaluation = reference.evaluation
    figures: dict[str, Any] = {
        "task": evaluation.task,
        "primary": evaluation.primary,
        "better": evaluation.better,
        "float": evaluation.metrics.model_dump(),
        "quantized": {},
        "real": None,
    }
    for bits in measures.bits:
        quantized = copy.deepcopy(model)
        quantize_(quantized, quantization(bits), data.evaluation[0])
        figures["quantized"][bits] = spreads(
            [run.metrics for run in measure_seeds(quantized, data, reference, measures.calibrations)]
        ).model_dump()
        if measures.real and bits == EXPORTED:
            figures["real"] = _real(quantized, data, reference, folder, tell)
    return figures


def _real(
    model: PreTrainedModel, data: CalibrationData, reference: Reference, folder: Path, tell: Tell
) -> dict[str, Any]:
    try:
        found = export_and_measure(model, Measuring(data, reference, 1), folder / INTEGERS, timed=True)
    except QuietformerError as error:  # a graph that does not export is still simulated
        return {"error": str(error)}
    made = found.details
    return {
        "figures": found.metrics.model_dump(),
        "latency": [row.model_dump() for row in made.latency],
        "bytes": made.bytes.model_dump(),
        "threads": made.threads,
        "agreement": {"cosine": made.cosine_to_simulation, "equal": made.equal_to_simulation},
    }


def curve(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Loss and outliers over the steps, at most so many points."""
    rows = [
        {name.removeprefix("outliers/"): value for name, value in row.items() if _is_drawn(name)}
        for row in log
        if "loss" in row
    ]
    every = max(1, -(-len(rows) // CURVE))
    return rows[::-1][::every][::-1]  # the last point is always there


def _is_drawn(name: str) -> bool:
    return name in ("step", "loss") or name.startswith("outliers/")
