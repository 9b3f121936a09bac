"""`quietformer quantize`: the paper's simulated quantization of any model, and what it costs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from quietformer.cli.printing import print_report
from quietformer.cli.progress import TerminalProgress, working
from quietformer.cli.report_files import PageOutput
from quietformer.config.options.base import Flag
from quietformer.config.options.quantize import QuantizationPlanOptions, QuantizeOptions
from quietformer.errors import QuietformerError


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
        _plan(model, options, output)
        return
    with TerminalProgress() as progress:
        report = workflow.quantize(model, options, progress)
    print_report(report)
    output.write(report)
    if (out := options.out) is not None:
        ship = shlex.join(["quietformer", "export", str(out), "OUT", *options.source_words()])
        print(f'quantized model in {out}; load it with quietformer.load("{out}"), ship it with {ship}')


def _plan(model: str, options: QuantizeOptions, output: QuantizeOutput) -> None:
    """Print the plan; files are written only where they are asked for."""
    from quietformer.workflows import quantize as workflow

    if ignored := sorted(options.model_fields_set - QuantizationPlanOptions.model_fields.keys()):
        raise QuietformerError(f"--plan measures and saves nothing; leave out --{ignored[0].replace('_', '-')}")
    asked = QuantizationPlanOptions(**{name: getattr(options, name) for name in options.model_fields_set})
    with TerminalProgress() as progress:
        report = workflow.plan(model, asked, progress)
    print_report(report)
    if output.json_path is not None:
        report.save(output.json_path)
    if "page" in output.model_fields_set:
        report.to_html(output.page)
