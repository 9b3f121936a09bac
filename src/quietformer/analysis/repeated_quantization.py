"""Quantizing a model several times over and saying what each gave: seeds, estimators, tensors."""

from __future__ import annotations

import math

from transformers import PreTrainedModel

from quietformer.analysis.evaluate import Reference, evaluate, reference_run
from quietformer.analysis.task_quality import evaluate_on
from quietformer.config.quantization import EstimatorSpec, estimators
from quietformer.config.tasks import MeasuredTask
from quietformer.data.calibration_data import CalibrationData
from quietformer.progress import SILENT, Progress
from quietformer.quant.calibration import calibrate_, full_precision, use_estimators_
from quietformer.quant.placement import QuantPlan
from quietformer.quant.sensitivity import Measure, sensitivity
from quietformer.results.quantize import CalibrationRun, SearchedEstimator, Sensitivity

SEARCHED = ("minmax", "running_minmax", "percentile(q=99.99)", "percentile(q=99.999)", "mse")
"""The estimators for activations among which the paper chose the best for each model."""

FEW = 16
"""Sequences on which sensitivity measures every tensor twice."""


def measure_seeds(
    model: PreTrainedModel, data: CalibrationData, reference: Reference, seeds: int, progress: Progress = SILENT
) -> list[CalibrationRun]:
    """Calibrate once per seed and evaluate; the model is left as seed 0 has calibrated it."""
    runs = []
    for count, seed in enumerate(reversed(range(seeds)), start=1):
        calibrate_(model, data.calibration(seed), progress=progress)
        what = f"evaluating ({count} of {seeds})"
        found = evaluate_on(model, data, reference, progress=progress, what=what)
        runs.append(CalibrationRun(seed=seed, metrics=found.metrics))
    return runs[::-1]


def search_estimator(
    model: PreTrainedModel, data: CalibrationData, task: MeasuredTask, progress: Progress = SILENT
) -> tuple[EstimatorSpec, list[SearchedEstimator]]:
    """The estimator for activations that does best on the calibration data of seed 0, which evaluation never sees."""
    batches = data.calibration(0)
    with full_precision(model):
        reference = reference_run(model, batches, task)
    rows, scores = [], []
    for done, text in enumerate(SEARCHED):
        progress.step("searching estimators", done, len(SEARCHED))
        use_estimators_(model, activations=estimators.read(text))
        calibrate_(model, batches)
        found = evaluate(model, batches, task, reference)
        rows.append(SearchedEstimator(activations=text, metrics=found.metrics))
        score = -found.value if found.better == "lower" else found.value
        scores.append(score if math.isfinite(score) else -math.inf)
    best = estimators.read(SEARCHED[max(range(len(scores)), key=scores.__getitem__)])
    use_estimators_(model, activations=best)
    return best, rows


def measure_sensitivity(
    model: PreTrainedModel, plan: QuantPlan, data: CalibrationData, task: MeasuredTask, progress: Progress = SILENT
) -> Sensitivity:
    """Every tensor alone, and all but every tensor, on a few of the evaluation sequences."""
    size = len(next(iter(data.evaluation[0].values())))
    few = data.evaluation[: max(1, FEW // size)]
    with full_precision(model):
        reference = reference_run(model, few, task)
    evaluation = reference.evaluation
    measure = Measure(evaluation.primary, evaluation.better, lambda: evaluate(model, few, task, reference).value)
    found = sensitivity(model, plan, few, measure, progress=progress)
    return found.model_copy(update={"sequences": evaluation.sequences})
