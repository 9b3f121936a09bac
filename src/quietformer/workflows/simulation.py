"""A model quantized in simulation and measured: what `quantize` and `export` share."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from quietformer.analysis.evaluate import Reference
from quietformer.analysis.repeated_quantization import measure_seeds, search_estimator
from quietformer.analysis.task_quality import evaluate_on, reference_on
from quietformer.analysis.writing import with_decoder_inputs
from quietformer.config.options.data import CalibrationOptions
from quietformer.config.options.export import ExportOptions
from quietformer.config.options.quantize import SimulationOptions
from quietformer.config.quantization import QuantizedSpec, QuantSpec
from quietformer.config.recorded_changes import changes_of
from quietformer.data.calibration_data import CalibrationData, calibration_data
from quietformer.errors import QuietformerError
from quietformer.progress import Progress
from quietformer.quant.calibration import full_precision, quantize_
from quietformer.quant.placement import QuantPlan
from quietformer.results.export import SearchStep
from quietformer.results.quality import spreads
from quietformer.results.quantize import CalibrationRun, SearchedEstimator, SimulatedReport
from quietformer.transforms.balance import balance_
from quietformer.transforms.find_prefix import find_prefix
from quietformer.transforms.gained_modules import gained_norms
from quietformer.transforms.prefix import add_prefix_
from quietformer.workflows.open_once import OpenedModel
from quietformer.workflows.search import Search


@dataclass(frozen=True)
class Simulation:
    """A calibrated model, what it was compared with, and what it measured."""

    opened: OpenedModel
    data: CalibrationData
    reference: Reference
    spec: QuantSpec
    plan: QuantPlan | None
    runs: list[CalibrationRun]
    searched: list[SearchedEstimator] = field(default_factory=list)

    def report_fields(self) -> SimulatedReport:
        """What every report of a simulation says."""
        evaluation = self.reference.evaluation
        done = ", balanced" if gained_norms(self.opened.model) else ""
        if (prefix := changes_of(self.opened.model).prefix) is not None:
            done += f", prefix {', '.join(map(str, prefix.tokens))}"
        return SimulatedReport(
            kind="simulated",
            model=self.opened.info,
            label=f"{self.spec.label}{done}",
            spec=self.spec,
            plan=None if self.plan is None else self.plan.info(),
            fp32=evaluation.metrics,
            runs=self.runs,
            quantized=spreads([run.metrics for run in self.runs]),
            search=self.searched,
            data=self.data.info,
            **dict(evaluation.yardstick),
        )


def simulate(
    opened: OpenedModel, options: SimulationOptions, progress: Progress, *, seeds: int = 1, search: bool = False
) -> Simulation:
    """Evaluate in fp32, balance if asked, place quantizers, calibrate once per seed and evaluate each."""
    spec = options.spec()
    data = _data(opened, options, progress)
    reference = reference_on(opened, data, progress=progress)
    _prepare_(opened, data, options)  # compared with what the model was before
    plan = quantize_(opened.model, spec, data.evaluation[0])
    searched: list[SearchedEstimator] = []
    if search:
        chosen, searched = search_estimator(opened.model, data, opened.task, progress)
        spec = plan.spec = spec.model_copy(update={"activations": chosen})
    runs = measure_seeds(opened.model, data, reference, seeds, progress)
    return Simulation(opened, data, reference, spec, plan, runs, searched)


def _data(opened: OpenedModel, options: CalibrationOptions, progress: Progress) -> CalibrationData:
    """With what an encoder-decoder writes, for its decoder to read."""
    progress.step("reading the data")
    return with_decoder_inputs(opened.model, calibration_data(opened.model, opened.name, opened.task, options))


def _prepare_(opened: OpenedModel, data: CalibrationData, options: SimulationOptions) -> None:
    """What is asked to be done to the model before it is quantized."""
    if options.balance and not balance_(opened.model, data.calibration(0)):
        raise QuietformerError(
            f"{opened.name} has no residual adds between LayerNorms to balance, or they are balanced; leave out --balance"
        )
    if not options.prefix:
        return
    tokens = options.prefix_tokens() or find_prefix(opened.model, data.calibration(0))
    if not tokens:
        raise QuietformerError(f"{opened.name} has no token that helps as a prefix; leave out --prefix")
    add_prefix_(opened.model, tokens)


def simulate_best(
    opened: OpenedModel, options: ExportOptions, progress: Progress
) -> tuple[Simulation, list[SearchStep]]:
    """The same for the INT8 with the least error that a search finds; the opened model is left as it is."""
    spec = options.spec()
    data = _data(opened, options, progress)
    reference = reference_on(opened, data, progress=progress)
    _prepare_(opened, data, options)
    found = Search(opened.model, data, spec, progress).run(
        seconds=options.search_seconds,
        ranges="acts" not in options.model_fields_set,
        per_token="granularity" not in options.model_fields_set,
    )
    measured = evaluate_on(found.model, data, reference, progress=progress)
    best = dataclasses.replace(opened, model=found.model)
    runs = [CalibrationRun(seed=0, metrics=measured.metrics)]
    return Simulation(best, data, reference, found.plan.spec, found.plan, runs), found.steps


def as_calibrated(
    opened: OpenedModel, quantized: QuantizedSpec, options: CalibrationOptions, progress: Progress
) -> Simulation:
    """A model that comes quantized, as it was calibrated."""
    data = _data(opened, options, progress)
    with full_precision(opened.model):
        reference = reference_on(opened, data, progress=progress)
    found = evaluate_on(opened.model, data, reference, progress=progress)
    return Simulation(opened, data, reference, quantized.spec, None, [CalibrationRun(seed=0, metrics=found.metrics)])
