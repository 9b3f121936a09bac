"""`export`: real INT8 for ONNX Runtime and OpenVINO, checked against the simulation, measured, beside what others give."""

from __future__ import annotations

import os
import time
from pathlib import Path

from quietformer.analysis.evaluate import evaluate
from quietformer.config.options.export import ExportOptions
from quietformer.config.options.quantization import QuantizationOptions
from quietformer.config.recorded_changes import changes_of
from quietformer.deployment.baselines import OwnExport, compare_baselines
from quietformer.deployment.onnx_export import export_onnx
from quietformer.deployment.runtimes import runtime_model, runtimes_asked
from quietformer.errors import QuietformerError
from quietformer.progress import SILENT, Progress
from quietformer.results.export import BaselineRow, ExportReport, SearchStep
from quietformer.workflows.open_once import ModelName, check_new_folder, command_on, open_once
from quietformer.workflows.simulation import as_calibrated, simulate, simulate_best

REPORT = "report.json"


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
    opened = open_once(model, options, progress)
    begin = time.perf_counter()
    quantized = changes_of(opened.model).quantized
    steps: list[SearchStep] = []
    if quantized is not None:
        _check_asks_for_nothing_else(opened.name, options)
        simulated = as_calibrated(opened, quantized, options, progress)
    elif options.search:
        simulated, steps = simulate_best(opened, options, progress)
    else:
        simulated = simulate(opened, options, progress)
    data, reference = simulated.data, simulated.reference
    details = export_onnx(simulated.opened.model, out, data.evaluation, data.tokenizer, options, progress)
    seconds = time.perf_counter() - begin
    real = {
        one.runtime: evaluate(
            runtime_model(one.runtime, out), data.evaluation, opened.task, reference, progress=progress,
            what=f"evaluating INT8 ({one.runtime})",
        ).metrics
        for one in details.runtimes
        if one.error is None
    }  # fmt: skip
    baselines: list[BaselineRow] = []
    if options.baselines:
        own = OwnExport(out, details.runtimes, simulated.spec, seconds, details.threads)
        baselines = compare_baselines(opened.model, data, reference, own, progress)
    fields = dict(simulated.report_fields()) | {
        "kind": "export",
        "real": real[details.runtimes[0].runtime],
        "real_by_runtime": real,
        "export": details,
        "baselines": baselines,
        "steps": steps,
        "command": command_on([model], "export", options, [out]),
    }
    report = ExportReport.model_validate(fields)
    report.save(out / REPORT)
    return report


def _check_asks_for_nothing_else(name: str, options: ExportOptions) -> None:
    """A folder that is quantized already is what it is; an option that asks for something else would be ignored."""
    if asked := sorted(options.model_fields_set & set(QuantizationOptions.model_fields)):
        raise QuietformerError(
            f"{name} is quantized already and is exported as it was calibrated; leave out --{asked[0].replace('_', '-')}, or "
            "export the model it was made from"
        )
