"""One run of a study: trained, looked at, quantized and exported under the same conditions as all the others."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from quietformer.analysis.evaluate import Reference, reference_run
from quietformer.analysis.provenance import versions
from quietformer.analysis.quantization import measure_seeds
from quietformer.analysis.task import task_of
from quietformer.data.calibration import CalibrationData
from quietformer.data.inputs import image_size
from quietformer.data.positions import Streamed
from quietformer.data.training import Kept, collate_for, takes_images, training_data
from quietformer.errors import QuietformerError
from quietformer.files import finite, write_json
from quietformer.quant.calibrate import quantize_
from quietformer.recipe import Recipe
from quietformer.report.page import write_page
from quietformer.sources import open_model
from quietformer.study.design import EXPORTED, Measures, Trial, quantization
from quietformer.study.measuring import BATCH, CALIBRATED, drawn_by_seed, spread_rows
from quietformer.study.side import look, real_integers
from quietformer.train.imitation import example_batches
from quietformer.train.run import train
from quietformer.train.run_folder import check_data

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


def run_trial(
    trial: Trial, measures: Measures, folder: Path, *, say: Callable[[str], None], tell: Tell
) -> dict[str, Any]:
    """Train and measure, or go on with it; what is finished is read and not computed again."""
    recipe, key = trial.recipe, trial_key(trial, measures)
    if (kept := finished_trial(folder / TRIAL, key)) is not None:
        return kept
    trained = train(recipe, folder, say=say)
    model = open_model(str(folder))
    data = validation_data(recipe, folder, model, measures.sequences)
    figures = {
        "version": 1,
        "kind": "trial",
        "key": key,
        "name": trial.name,
        "at": trial.at,
        "seed": trial.seed,
        "attention": trained["attention"],
        "parameters": trained["parameters"],
        "steps": trained["steps"],
        "seconds": trained["seconds"],
        "beside": {name: trained[name] for name in ("bigram_perplexity", "majority_accuracy") if name in trained},
        "outliers": trained["outliers"],
        "curve": curve(trained["log"]),
        "paper": trained["paper"],
        **_measure(model, data, measures, folder, trial.name, tell),
        "data": data.described,
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


def validation_data(recipe: Recipe, run: Path, model: PreTrainedModel, sequences: int) -> CalibrationData:
    """What the run was validated on, asked in the same way whatever its seed; calibration takes what it was trained on."""
    shape = image_size(model) if takes_images(recipe) else (0, 0)
    found = training_data(recipe, run, image_shape=shape)
    embeddings: Any = None if takes_images(recipe) else model.get_input_embeddings()
    check_data(run, found.fingerprint)  # rows that were trained on must not turn up among those that are asked
    vocabulary = 0 if embeddings is None else int(embeddings.weight.shape[0])
    imitated = task_of(model) if recipe.task == "imitate" else None
    collate = collate_for(recipe, found, vocabulary, seed=0, imitated=imitated)
    labelled = "masked" in (recipe.task, imitated) or recipe.task in ("images", "pairs")
    asked = spread_rows(found.validation, sequences)
    # A stream has no rows to choose from: its validation data is divided.
    source: Any = Kept(asked[1::2]) if isinstance(found.rows, Streamed) else found.rows
    asked = asked[::2] if isinstance(found.rows, Streamed) else asked

    def batched(rows: list[Any]) -> list[dict[str, Any]]:
        return example_batches(Kept(rows), range(len(rows)), collate, BATCH, labelled=labelled)

    described = found.described | {
        "evaluation_sequences": len(asked),
        "calibration_sequences": min(CALIBRATED, len(source)),
    }
    return CalibrationData(batched(asked), drawn_by_seed(source, batched), found.tokenizer, described)


def _measure(
    model: PreTrainedModel, data: CalibrationData, measures: Measures, folder: Path, name: str, tell: Tell
) -> dict[str, Any]:
    total = len(data.evaluation)
    reference = reference_run(
        model, data.evaluation, task_of(model), progress=lambda done: tell("evaluating in floating point", done, total)
    )
    if measures.pages:
        write_page(look(model, data, name, tell), folder / PAGE)
    evaluation = reference.evaluation
    figures: dict[str, Any] = {
        "task": evaluation.task,
        "primary": evaluation.primary,
        "better": evaluation.better,
        "float": evaluation.to_dict()["figures"],
        "quantized": {},
        "real": None,
    }
    for bits in measures.bits:
        quantized = copy.deepcopy(model)
        quantize_(quantized, quantization(bits), data.evaluation[0])
        figures["quantized"][bits] = measure_seeds(quantized, data, reference, measures.calibrations, tell)["quantized"]
        if measures.real and bits == EXPORTED:
            figures["real"] = _real(quantized, data, reference, folder, tell)
    return figures


def _real(
    model: PreTrainedModel, data: CalibrationData, reference: Reference, folder: Path, tell: Tell
) -> dict[str, Any]:
    try:
        found, about = real_integers(model, data, reference, folder / INTEGERS, timed=True, tell=tell)
    except QuietformerError as error:  # a graph that does not export is still simulated
        return {"error": str(error)}
    return {"figures": found, **about}


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
