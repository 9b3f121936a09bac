"""`quietformer inspect`: does a model have outliers, where, what makes them, will INT8 break it, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from quietformer.cli.printing import print_report
from quietformer.cli.progress import TerminalProgress, working
from quietformer.cli.report_files import PageOutput
from quietformer.config.options.base import Flag
from quietformer.config.options.inspect import InspectOptions
from quietformer.files import check_new_place, write_text


class InspectOutput(PageOutput):
    """What `inspect` leaves behind."""

    page: Annotated[Path, Flag("PATH")] = Field(
        default=Path("outliers.html"), description="The page to write, JSON beside it."
    )
    figures: Annotated[Path | None, Flag("DIR")] = Field(default=None, description="Also draw charts as PNG and SVG.")
    card: Annotated[Path | None, Flag("PATH")] = Field(
        default=None, description="Also write a fragment for a model card (Markdown)."
    )

    def places(self) -> list[Path]:
        return [*super().places(), *([] if self.card is None else [self.card])]

    def check(self) -> None:
        super().check()
        if self.figures is not None:
            check_new_place(self.figures)


def inspect(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="A folder, a .gguf file, a hub id or 'minilm'; several: checkpoints of one run, the last is shown in full.",
        ),
    ],
    options: InspectOptions,
    output: InspectOutput,
) -> None:
    """Find the outliers of MODEL, say what they mean, and write a page."""
    output.check()
    with working("starting"):
        from quietformer.workflows.inspect import inspect as workflow
    with TerminalProgress() as progress:
        report = workflow(models, options, progress)
    print_report(report)
    output.write(report)
    if output.card is not None:
        from quietformer.rendering.card import card_fragment

        write_text(output.card, card_fragment(report))
    if output.figures is not None:
        with working("drawing"):
            from quietformer.rendering.plots import draw_plots

            drawn = draw_plots(report, output.figures)
        print(f"{len(drawn)} charts in {output.figures}")
