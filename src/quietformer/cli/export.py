"""`quietformer export`: real INT8 for ONNX Runtime and OpenVINO, checked against the simulation and measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from quietformer.cli.printing import print_report
from quietformer.cli.progress import TerminalProgress, working
from quietformer.cli.report_files import JsonOutput
from quietformer.config.options.export import ExportOptions
from quietformer.config.options.layer_by_layer import LayerByLayerOptions
from quietformer.errors import QualityError, QuietformerError
from quietformer.results.base import Report

PAGE = "report.html"
TARGET = "compressed-tensors"
"""What can be written layer by layer."""


class ExportOutput(JsonOutput):
    """How the work is done; in Python the last two are `export_layer_by_layer` and `plan_layer_by_layer`."""

    layer_by_layer: bool = Field(
        default=False,
        description="Hold the weights of one block in memory at a time; for compressed-tensors only. Chosen by itself with "
        "--for compressed-tensors if MODEL does not fit into free memory.",
    )
    plan: bool = Field(default=False, description="Layer by layer: only print memory, disk space and time.")


def export(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A quantized folder, any other folder, a hub id or 'minilm'.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write.")],
    options: ExportOptions,
    layered: LayerByLayerOptions,
    output: ExportOutput,
) -> None:
    """Write MODEL to OUT as INT8, for ONNX Runtime and OpenVINO, that agrees with the simulation, and measure it.

    Clients such as sentence-transformers and optimum load OUT as it is; --for chooses them.

    A folder that `quietformer quantize --out` wrote is exported as it was calibrated; any other model is calibrated first.
    With --min-quality nothing is written if real INT8 is worse, and the exit code is 3.
    """
    output.check()
    if output.layer_by_layer or output.plan or _does_not_fit(model, options):
        return _layer_by_layer(model, out, options, layered, output)
    if asked := layered.model_fields_set - set(ExportOptions.model_fields):
        raise QuietformerError(
            f"{_flag(min(asked))} goes with --layer-by-layer; add it, or leave out {_flag(min(asked))}"
        )
    with working("starting"):
        try:
            from quietformer.workflows.export import export as workflow
        except ImportError:
            raise QuietformerError("export needs ONNX and onnxruntime; pip install quietformer[onnx]") from None
    try:
        with TerminalProgress() as progress:
            report = workflow(model, out, options, progress)
    except QualityError as error:
        if isinstance(error.report, Report):  # what was reached and tried, before the line that refuses it
            print_report(error.report)
            output.write(error.report)
        raise
    print_report(report)
    output.write(report)
    report.to_html(out / PAGE)
    print(f"\nmodel, model card, report and page ({PAGE}) in {out}")
    if options.push:
        print(f"pushed to {options.push}")
    return None


def _does_not_fit(model: str, options: ExportOptions) -> bool:
    """Whether the model is too large for memory, and can be written layer by layer as it was asked for."""
    if options.targets != (TARGET,):
        return False
    with working("starting"):
        from quietformer.workflows.layer_by_layer import too_large
    if too_large(model):
        print(f"{model} does not fit into free memory as a whole; it is exported layer by layer")
        return True
    return False


def _layer_by_layer(
    model: str, out: Path, options: ExportOptions, layered: LayerByLayerOptions, output: ExportOutput
) -> None:
    if ignored := options.model_fields_set - set(LayerByLayerOptions.model_fields):
        raise QuietformerError(f"{_flag(min(ignored))} does not go with --layer-by-layer; leave it out")
    with working("starting"):
        from quietformer.workflows import layer_by_layer as workflow
    with TerminalProgress() as progress:
        if output.plan:
            report: Report = workflow.plan_layer_by_layer(model, out, layered, progress)
        else:
            report = workflow.export_layer_by_layer(model, out, layered, progress)
    print_report(report)
    output.write(report)
    if not output.plan:
        report.to_html(out / PAGE)
        print(f"\nmodel, report and page ({PAGE}) in {out}")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
