"""`quietformer export`: real INT8 for ONNX Runtime and OpenVINO, checked against the simulation and measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quietformer.cli.printing import print_report
from quietformer.cli.progress import TerminalProgress, working
from quietformer.cli.report_files import JsonOutput
from quietformer.config.options.export import ExportOptions
from quietformer.errors import QualityError, QuietformerError
from quietformer.results.base import Report

PAGE = "report.html"


def export(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A quantized folder, any other folder, a hub id or 'minilm'.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write.")],
    options: ExportOptions,
    output: JsonOutput,
) -> None:
    """Write MODEL to OUT as INT8, for ONNX Runtime and OpenVINO, that agrees with the simulation, and measure it.

    Clients such as sentence-transformers and optimum load OUT as it is; --for chooses them.

    A folder that `quietformer quantize --out` wrote is exported as it was calibrated; any other model is calibrated first.
    With --min-quality nothing is written if real INT8 is worse, and the exit code is 3.
    """
    output.check()
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
