"""`quietformer retrofit`: heal a pretrained model so that static INT8 works on it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from quietformer.cli.printing import print_report
from quietformer.cli.progress import TerminalProgress, working
from quietformer.cli.report_files import JsonOutput
from quietformer.config.options.retrofit import RetrofitOptions
from quietformer.errors import QuietformerError

PAGE = "report.html"


def retrofit(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder, a .gguf file, a hub id or 'minilm'.")],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="The folder for the healed model; the same command again resumes.")
    ],
    options: RetrofitOptions,
    output: JsonOutput,
) -> None:
    """Make static INT8 work on MODEL: without training if that is enough, else by healing it.

    Healing adds gates that start open, a penalty on outliers, self-distillation and QAT; it needs no labels. The report says
    what INT8 does to the model before and after. OUT gets the INT8 ONNX and, after healing, the model and a page. A model
    without outliers is left alone.
    """
    output.check()
    with working("starting"):
        if options.real:
            _need_onnx()
        from quietformer.training.interrupt import StoppedError
        from quietformer.workflows.retrofit import REPORT
        from quietformer.workflows.retrofit import retrofit as workflow
    try:
        with TerminalProgress() as progress:
            report = workflow(model, out, options, progress)
    except StoppedError as stopped:
        print(stopped, file=sys.stderr, flush=True)
        raise typer.Exit(130) from None
    print_report(report)
    output.write(report)
    if not report.changed and report.training_free is not None:
        where = f"INT8 ONNX in {out / 'int8'}, " if report.training_free.real else ""
        print(f"\n{where}report {out / REPORT}")
        return
    if not report.changed:
        print(f"\n{model} is left alone, and nothing is written to {out}; --force trains it all the same.")
        return
    report.to_html(out / PAGE)
    print(f"\nmodel in {out}, page {out / PAGE}, report {out / REPORT}")
    if (out / "int8").is_dir():
        print(f"INT8 ONNX in {out / 'int8'}")


def _need_onnx() -> None:
    try:
        import onnx_ir  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise QuietformerError(
            "real INT8 needs ONNX and onnxruntime; pip install quietformer[onnx], or give --no-real"
        ) from None
