"""`quantize`: the paper's simulated quantization of any model, what it costs, and which tensors are to blame."""

from __future__ import annotations

from pathlib import Path

from quietformer.analysis.annihilation import annihilated_tensors
from quietformer.analysis.repeated_quantization import measure_sensitivity
from quietformer.config.options.data import CalibrationOptions, DataOptions
from quietformer.config.options.quantize import QuantizationPlanOptions, QuantizeOptions
from quietformer.data.calibration_data import calibration_data
from quietformer.errors import QuietformerError
from quietformer.models.open_any import gguf_file
from quietformer.models.save import save
from quietformer.progress import SILENT, Progress
from quietformer.quant.calibration import plan_quantization
from quietformer.quant.sensitivity import noise_by_tensor
from quietformer.results.quantize import QuantizationPlanReport, QuantizeReport
from quietformer.workflows.open_once import ModelName, check_new_folder, command_on, open_once
from quietformer.workflows.simulation import simulate


def quantize(model: ModelName, options: QuantizeOptions | None = None, progress: Progress = SILENT) -> QuantizeReport:
    """Quantize a model in simulation, and say what it costs and which tensors are to blame."""
    options = options or QuantizeOptions()
    if options.out is not None:
        _check_out(options.out, model, overwrite=options.overwrite)
    options.spec()  # a mistake in it is told before the model is loaded
    opened = open_once(model, options, progress)
    simulated = simulate(opened, options, progress, seeds=options.seeds, search=options.search)
    data, plan = simulated.data, simulated.plan
    assert plan is not None
    if options.sensitivity:
        found = measure_sensitivity(opened.model, plan, data, opened.task, progress)
    else:
        found = noise_by_tensor(opened.model, plan, data.evaluation[:2])
    annihilated = annihilated_tensors(opened.model, found.rows, data.evaluation[:2])
    if options.out is not None:
        progress.step(f"writing {options.out}")
        # The files of a folder are copied; those of a GGUF file have to be made.
        save(
            opened.model, options.out, processor=data.tokenizer if options.tokenizer or gguf_file(opened.name) else None
        )
    fields = dict(simulated.report_fields()) | {"kind": "quantize", "sensitivity": found, "annihilated": annihilated}
    return QuantizeReport.model_validate(fields | {"command": command_on([model], "quantize", options)})


def plan(
    model: ModelName, options: QuantizationPlanOptions | None = None, progress: Progress = SILENT
) -> QuantizationPlanReport:
    """What `quantize` would quantize, and what not and why; nothing is measured."""
    options = options or QuantizationPlanOptions()
    spec = options.spec()
    opened = open_once(model, options, progress)
    of_data = {name: getattr(options, name) for name in DataOptions.model_fields}
    one_batch = CalibrationOptions(**of_data, sequences=max(2, options.batch_size), calibration=1)
    data = calibration_data(opened.model, opened.name, opened.task, one_batch)
    return QuantizationPlanReport(
        model=opened.info,
        command=command_on([model], "quantize", options, ["--plan"]),
        **dict(plan_quantization(opened.model, spec, data.evaluation[0]).info()),
    )


def _check_out(out: Path, model: ModelName, *, overwrite: bool) -> None:
    check_new_folder(out, model, overwrite=overwrite)
    if out.is_dir() and any(out.iterdir()) and not (out / "config.json").is_file():
        raise QuietformerError(f"{out} exists and is not a model folder; choose another folder")
