"""`quietformer bench`: how fast an exported folder is on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quietformer.cli.printing import print_report
from quietformer.cli.progress import TerminalProgress, working
from quietformer.cli.report_files import JsonOutput
from quietformer.config.options.bench import BenchOptions
from quietformer.errors import QuietformerError


def bench(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder that `quietformer export` wrote.")],
    options: BenchOptions,
    output: JsonOutput,
) -> None:
    """Measure latency, throughput and memory of FOLDER on this machine, beside fp32 where it was kept."""
    output.check()
    with working("starting"):
        try:
            from quietformer.workflows.bench import bench as workflow
        except ImportError:
            raise QuietformerError("bench needs ONNX and onnxruntime; pip install quietformer[onnx]") from None
    with TerminalProgress() as progress:
        report = workflow(folder, options, progress)
    print_report(report)
    output.write(report)
