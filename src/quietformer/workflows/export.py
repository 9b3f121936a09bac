"""`export`: real INT8 for ONNX Runtime and OpenVINO, checked against the simulation, measured, beside what others give."""

from __future__ import annotations

import os
import time
from pathlib import Path

from transformers import PreTrainedModel

from quietformer.analysis.evaluate import Evaluation
from quietformer.analysis.task_quality import evaluate_on
from quietformer.architectures.forward import has_decoder
from quietformer.config.options.export import ExportOptions
from quietformer.config.options.limits import check_limits_fit
from quietformer.config.options.quantization import QuantizationOptions
from quietformer.config.recorded_changes import changes_of
from quietformer.data.calibration_data import CalibrationData
from quietformer.deployment.agreement_limits import left_that_agree
from quietformer.deployment.baselines import OwnExport, compare_baselines
from quietformer.deployment.client_folder import ClientPlan, lay_out, plan_clients, stale_files
from quietformer.deployment.onnx_export import Calibrated, export_calibrated
from quietformer.deployment.push import push_folder
from quietformer.deployment.runtimes import runtime_model, runtimes_asked
from quietformer.deployment.torch_program import check_exportable
from quietformer.errors import QualityError, QuietformerError
from quietformer.files import whole_folder, write_text
from quietformer.progress import SILENT, Progress
from quietformer.rendering.model_card import model_card
from quietformer.results import numbers
from quietformer.results.export import TITLES, BaselineRow, ExportDetails, ExportReport, SearchStep
from quietformer.results.quality import better_of
from quietformer.workflows.open_once import ModelName, OpenedModel, check_new_folder, command_on, open_once
from quietformer.workflows.simulation import Simulation, as_calibrated, simulate, simulate_best

CLASSES = ("classes", "images")
"""Tasks whose outputs are logits of a sequence or an image."""
REPORT, CARD = "report.json", "README.md"
WHAT_IT_NEEDS = {
    "ndcg10": "it needs paragraphs of two sentences and more that are not calibrated on (--eval-texts); there are",
    "wer": "it needs a whole speech model, and a transcript beside every .wav file; there are",
    "top1": "it needs labels (class folders); there are",
}


def export(
    model: ModelName,
    out: str | os.PathLike[str],
    options: ExportOptions | None = None,
    progress: Progress = SILENT,
) -> ExportReport:
    """Write a model to a folder as INT8 that agrees with the simulation, and measure it.

    A folder that `quantize` wrote is exported as it was calibrated; any other model is calibrated first.
    """
    options, out = options or ExportOptions(), Path(out)
    check_new_folder(out, model, overwrite=options.overwrite)
    runtimes_asked(options.runtime)
    options.spec()  # a mistake in it is told before the model is loaded
    limits = options.limits()
    opened = open_once(model, options, progress, whole=True)
    _check_fits(opened, options)
    clients = plan_clients(opened.model, opened.name, options)
    begin = time.perf_counter()
    simulated, steps = _simulated(opened, options, progress)
    data, reference = simulated.data, simulated.reference
    _check_measured(limits, reference.evaluation)
    with whole_folder(out, stale=stale_files(out)) as draft:  # put in place when the quality is known and suffices
        best, onnx = simulated.opened.model, options.model_copy(update={"runtime": clients.runtime})
        details = _written(opened, best, data, draft, onnx, progress)
        asked = _asked_by_name(clients, options)
        details = left_that_agree(details, draft, asked=asked, classes=opened.task in CLASSES)
        seconds = time.perf_counter() - begin
        real = {
            one.runtime: evaluate_on(
                runtime_model(one.runtime, draft), data, reference, progress=progress,
                what=f"evaluating INT8 ({one.runtime})",
            ).metrics
            for one in details.runtimes
            if one.error is None
        }  # fmt: skip
        baselines: list[BaselineRow] = []
        if options.baselines:
            own = OwnExport(draft, details.runtimes, simulated.spec, seconds, details.threads)
            baselines = compare_baselines(opened.model, data, reference, own, progress)
        fields = dict(simulated.report_fields()) | {
            "kind": "export",
            "real": real[details.runtimes[0].runtime],
            "real_by_runtime": real,
            "export": details,
            "baselines": baselines,
            "steps": steps,
            "card": clients.card,
            "command": command_on([model], "export", options, [out]),
        }
        report = ExportReport.model_validate(fields)
        _check_quality(limits, report)
        report = report.model_copy(update={"export": lay_out(clients, draft, details, best)})
        report.save(draft / REPORT)
        write_text(draft / CARD, model_card(report))
        written = [path.relative_to(draft).as_posix() for path in draft.rglob("*") if path.is_file()]
    if options.push:  # without the report, which has paths of this machine
        progress.step(f"pushing to {options.push}")
        push_folder(out, options.push, [name for name in written if name != REPORT], private=options.private)
    return report


def _written(
    opened: OpenedModel,
    best: PreTrainedModel,
    data: CalibrationData,
    draft: Path,
    options: ExportOptions,
    progress: Progress,
) -> ExportDetails:
    """The graphs of the calibrated model, checked on the data they are evaluated on."""
    both = Calibrated(best, None if changes_of(opened.model).quantized else opened.model)
    return export_calibrated(both, draft, data.evaluation, data.tokenizer, options, progress)


def _asked_by_name(clients: ClientPlan, options: ExportOptions) -> bool:
    """Whether runtimes, or a client that needs OpenVINO, were chosen rather than taken because they are installed."""
    return options.runtime is not None or any(target.runtimes == ("openvino",) for target in clients.targets)


def _check_fits(opened: OpenedModel, options: ExportOptions) -> None:
    """Refuse a model that cannot be exported, or not as it is asked for, before the work."""
    check_exportable(opened.model)
    if options.baselines and has_decoder(opened.model):
        raise QuietformerError("--baselines: other tools are not compared on encoder-decoders; leave it out")
    check_limits_fit(options.limits(), opened.task, type(opened.model).__name__)


def _simulated(opened: OpenedModel, options: ExportOptions, progress: Progress) -> tuple[Simulation, list[SearchStep]]:
    """The calibrated model, and what a search tried: as it comes, by a search, or as told."""
    quantized = changes_of(opened.model).quantized
    if quantized is not None:
        _check_asks_for_nothing_else(opened.name, options)
        return as_calibrated(opened, quantized, options, progress), []
    return simulate_best(opened, options, progress) if options.search else (simulate(opened, options, progress), [])


def _check_measured(limits: dict[str, float], evaluation: Evaluation) -> None:
    """Refuse a limit that this data cannot test, before anything is written."""
    for name in limits:
        if name not in evaluation.measured:
            raise QuietformerError(
                f"--min-quality {name}: this data does not measure it; {WHAT_IT_NEEDS.get(name, 'it is measured by')} "
                f"{', '.join(evaluation.measured)}"
            )


def _check_quality(limits: dict[str, float], report: ExportReport) -> None:
    """Refuse a model that is worse than asked for in one of its runtimes, or that gives no number any more."""
    for runtime, metrics in report.real_by_runtime.items():
        for name, reached in metrics.items():
            if reached is None and report.fp32[name] is not None:
                raise QualityError(f"INT8 in {TITLES[runtime]} gives no {name}, fp32 does; nothing was written", report)
        for name, limit in limits.items():
            reached = metrics[name]
            if reached is None or (reached > limit if better_of(name) == "lower" else reached < limit):
                raise QualityError(
                    f"real INT8 in {TITLES[runtime]} reaches {name} {numbers.metric(reached, name)}, --min-quality asks for "
                    f"{numbers.quoted(limit)}; {_tried(report)}; nothing was written",
                    report,
                )


def _tried(report: ExportReport) -> str:
    """What the search did, in words."""
    kept = [step.name for step in report.steps if step.kept and step.name != "start"]
    dropped = dict.fromkeys(step.name for step in report.steps if not step.kept and step.name not in kept)
    if not report.steps:
        return "there was no search"
    found = f"the search kept {', '.join(dict.fromkeys(kept)) or 'nothing'}"
    return f"{found} and dropped {', '.join(dropped)}" if dropped else found


def _check_asks_for_nothing_else(name: str, options: ExportOptions) -> None:
    """A folder that is quantized already is what it is; an option that asks for something else would be ignored."""
    if asked := sorted(options.model_fields_set & set(QuantizationOptions.model_fields)):
        raise QuietformerError(
            f"{name} is quantized already and is exported as it was calibrated; leave out --{asked[0].replace('_', '-')}, or "
            "export the model it was made from"
        )
