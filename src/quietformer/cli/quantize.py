"""`quietformer quantize`: the paper's simulated quantization of any model, and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from quietformer.cli.printing import print_report, print_tables
from quietformer.cli.progress import TerminalProgress, working
from quietformer.cli.report_files import PageOutput
from quietformer.config.options.base import Flag
from quietformer.config.options.quantize import QuantizeOptions
from quietformer.files import write_text


class QuantizeOutput(PageOutput):
    """What `quantize` leaves behind."""

    page: Annotated[Path, Flag("PATH")] = Field(
        default=Path("quantized.html"), description="The page to write, JSON beside it."
    )
    plan: bool = Field(default=False, description="Only list what would be quantized, and what not and why.")


def quantize(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder, a .gguf file, a hub id or 'minilm'.")],
    options: QuantizeOptions,
    output: QuantizeOutput,
) -> None:
    """Quantize MODEL in simulation, and say what it costs and which tensors are to blame."""
    output.check()
    with working("starting"):
        from quietformer.workflows import quantize as workflow
    if output.plan:
        with TerminalProgress() as progress:
            plan = workflow.plan(model, options, progress)
        print(f"{plan.weights} weights and {plan.activations} activations would be quantized.")
        print("Grids: s8 is symmetric with 8 bits, u8 asymmetric, s8@0 has a scale for each channel of dimension 0.")
        print_tables(plan.tables())
        if output.json_path is not None:
            write_text(output.json_path, plan.model_dump_json(indent=1) + "\n")
        return
    with TerminalProgress() as progress:
        report = workflow.quantize(model, options, progress)
    print_report(report)
    output.write(report)
    if (out := options.out) is not None:
        print(
            f'quantized model in {out}; load it with quietformer.load("{out}"), ship it with quietformer export {out} OUT'
        )
