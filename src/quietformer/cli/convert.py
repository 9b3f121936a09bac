"""`quietformer convert`: a model with another attention, as a new folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quietformer.cli.progress import TerminalProgress, working
from quietformer.cli.report_files import JsonOutput
from quietformer.config.options.convert import ConvertOptions


def convert(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder, a .gguf file or a hub id.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write.")],
    options: ConvertOptions,
    output: JsonOutput,
) -> None:
    """Put another attention into MODEL and save it to OUT; what is not named stays as it is.

    A pretrained model changes with its attention: gates that start open, 'linear(scale=2, weight_std=0.01)', leave it nearly
    as it was; anything else needs fine-tuning.
    """
    output.check()
    with working("starting"):
        from quietformer.workflows.convert import convert as workflow
    with TerminalProgress() as progress:
        report = workflow(model, out, options, progress)
    print("\n".join(report.sentences()))
    output.write(report)
