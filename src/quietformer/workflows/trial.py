"""One run of a study: train, open once, quantize at each bit width, export, measure."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel

from quietformer.analysis.evaluate import Reference, reference_run
from quietformer.analysis.repeated_quantization import measure_seeds
from quietformer.architectures.task import task_of
from quietformer.config.study import EXPORTED, Measures, Trial, quantization
from quietformer.data.calibration_data import CalibrationData
from quietformer.data.unseen_data import validation_data
from quietformer.errors import QuietformerError
from quietformer.models.open_any import open_model
from quietformer.progress import SILENT, Progress
from quietformer.quant.calibration import quantize_
from quietformer.results.base import Number
from quietformer.results.quality import Spreads, spreads
from quietformer.results.train import LogLine, TrainReport
from quietformer.results.trial import Baselines, CurvePoint, RealInt8, TrialKey, TrialReport, TrialResult
from quietformer.training.run import train
from quietformer.workflows.measure_before_after import Measuring, export_and_measure, inspect_some

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
    trained = train(recipe, folder, progress)
    model = open_model(str(folder))
    data = validation_data(recipe, folder, model, measures.sequences)
    reference = reference_run(model, data.evaluation, task_of(model), progress=progress)
    by = Measuring(data, reference, measures.calibrations, progress)
    if measures.pages:
        inspect_some(model, data, options.trial.name, progress).to_html(folder / PAGE)
    quantized: dict[str, Spreads] = {}
    real: RealInt8 | None = None
    for bits in measures.bits:
        other = copy.deepcopy(model)
        quantize_(other, quantization(bits), data.evaluation[0])
        runs = measure_seeds(other, data, reference, measures.calibrations, progress)
        quantized[bits] = spreads([run.metrics for run in runs])
        if measures.real and bits == EXPORTED:
            real = _real_int8(other, by, folder / INT8)
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


def _real_int8(model: PreTrainedModel, by: Measuring, folder: Path) -> RealInt8:
    try:
        found = export_and_measure(model, by, folder, timed=True)
    except QuietformerError as error:  # a graph that cannot be exported has still been simulated
        return RealInt8(error=str(error))
    return RealInt8(metrics=found.metrics, **dict(found.facts))


def _result(trained: TrainReport, reference: Reference, data: CalibrationData) -> TrialResult:
    """What training and fp32 gave."""
    evaluation = reference.evaluation
    beaten = {name: getattr(trained, name) for name in Baselines.model_fields}
    return TrialResult(
        attention=trained.attention,
        parameters=trained.parameters,
        steps=trained.steps,
        seconds=trained.seconds,
        task=evaluation.task,
        primary=evaluation.primary,
        better=evaluation.better,
        fp32=evaluation.metrics,
        quantized={},
        outliers=trained.outliers,
        baselines=Baselines[Number](**{name: value for name, value in beaten.items() if value is not None}),
        curve=curve(trained.log),
        paper=trained.paper,
        data=data.info,
    )


def curve(log: Iterable[LogLine]) -> list[CurvePoint]:
    """Loss and outliers over the steps, thinned out to `MOST_POINTS`; the last point is always kept."""
    points = [
        CurvePoint.model_validate(
            {name.removeprefix("outliers/"): value for name, value in row.items() if _is_drawn(name)}
        )
        for row in log
        if "loss" in row
    ]
    every = max(1, -(-len(points) // MOST_POINTS))
    return points[::-1][::every][::-1]


def _is_drawn(name: str) -> bool:
    return name in ("step", "loss") or name.startswith("outliers/")
