"""One run of a study: train, open once, quantize at each bit width, export, measure."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
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
from quietformer.models.open import open_model
from quietformer.progress import SILENT, Progress
from quietformer.quant.calibration import quantize_
from quietformer.report.page import write_page
from quietformer.results.data import DataInfo
from quietformer.results.inspect import Headline
from quietformer.results.quality import Metrics, Spreads, better_of
from quietformer.results.trial import Baselines, CurvePoint, RealInt8, TrialKey, TrialReport, TrialResult
from quietformer.results.upgrades import TASKS
from quietformer.training.run import train
from quietformer.workflows.quality import look, real_integers

TRIAL, PAGE, INT8 = "trial.json", "inspect.html", "int8"
"""In the folder of a run: its report, the page of its activations, and the folder with real INT8."""

MOST_POINTS = 200
"""Points of a curve that are kept at most."""


@dataclass(frozen=True)
class TrialOptions:
    """Which run, what to measure of it, and the folder for it."""

    trial: Trial
    measures: Measures
    folder: Path

    @property
    def key(self) -> TrialKey:
        return TrialKey.of(self.trial, self.measures)


def run_trial(options: TrialOptions, progress: Progress = SILENT) -> TrialReport:
    """Train and measure, or resume; a finished run is read and not computed again."""
    if (known := finished_trial(options.folder / TRIAL, options.key)) is not None and known.result is not None:
        return known
    recipe, measures, folder = options.trial.recipe, options.measures, options.folder
    trained = train(recipe, folder, say=progress.say)
    model = open_model(str(folder))
    data = validation_data(recipe, folder, model, measures.sequences)
    reference = _fp32(model, data, progress)
    if measures.pages:
        write_page(look(model, data, options.trial.name, progress.step), folder / PAGE)
    quantized: dict[str, Spreads] = {}
    real: RealInt8 | None = None
    for bits in measures.bits:
        other = copy.deepcopy(model)
        quantize_(other, quantization(bits), data.evaluation[0])
        found = measure_seeds(other, data, reference, measures.calibrations, progress.step)
        quantized[bits] = Spreads.model_validate(found["quantized"])
        if measures.real and bits == EXPORTED:
            real = _real_int8(other, data, reference, folder, progress)
    result = _result(trained, reference, data).model_copy(update={"quantized": quantized, "real": real})
    report = TrialReport.made(options.trial, measures, result=result)
    report.save(folder / TRIAL)
    return report


def finished_trial(path: Path, key: TrialKey) -> TrialReport | None:
    """The saved report of a run, if it is of this run and complete."""
    try:
        report = TrialReport.read(path)
    except QuietformerError:
        return None
    return report if report.key == key else None


def _fp32(model: PreTrainedModel, data: CalibrationData, progress: Progress) -> Reference:
    total = len(data.evaluation)
    return reference_run(
        model, data.evaluation, task_of(model), progress=lambda done: progress.step("evaluating fp32", done, total)
    )


def _real_int8(
    model: PreTrainedModel, data: CalibrationData, reference: Reference, folder: Path, progress: Progress
) -> RealInt8:
    try:
        metrics, about = real_integers(model, data, reference, folder / INT8, timed=True, tell=progress.step)
    except QuietformerError as error:  # a graph that cannot be exported has still been simulated
        return RealInt8(error=str(error))
    return RealInt8.model_validate({"metrics": metrics, **about})


def _result(trained: Mapping[str, Any], reference: Reference, data: CalibrationData) -> TrialResult:
    """What training and fp32 gave, typed."""
    evaluation, outliers = reference.evaluation, trained["outliers"]
    return TrialResult.model_validate(
        {
            "attention": trained["attention"],
            "parameters": trained["parameters"],
            "steps": trained["steps"],
            "seconds": trained["seconds"],
            "task": TASKS.get(evaluation.task, evaluation.task),
            "primary": evaluation.primary,
            "better": better_of(evaluation.primary),
            "fp32": Metrics.model_validate(evaluation.to_dict()["figures"]),
            "quantized": {},
            "outliers": Headline.model_validate(outliers) if "infinity_site" in outliers else None,
            "baselines": {name: trained[name] for name in Baselines.model_fields if name in trained},
            "curve": curve(trained["log"]),
            "paper": trained["paper"],
            "data": DataInfo.model_validate(data.described),
        }
    )


def curve(log: Iterable[Mapping[str, Any]]) -> list[CurvePoint]:
    """Loss and outliers over the steps, thinned out to `MOST_POINTS`; the last point is always kept."""
    points = [
        CurvePoint(**{name.removeprefix("outliers/"): value for name, value in row.items() if _is_drawn(name)})
        for row in log
        if "loss" in row
    ]
    every = max(1, -(-len(points) // MOST_POINTS))
    return points[::-1][::every][::-1]


def _is_drawn(name: str) -> bool:
    return name in ("step", "loss") or name.startswith("outliers/")
