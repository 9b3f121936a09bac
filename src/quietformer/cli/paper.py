"""`quietformer paper`: every table and figure of the paper, what makes it, what the paper found, and what we did."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from quietformer.cli.progress import working
from quietformer.cli.report_files import JsonOutput
from quietformer.config.options.base import Flag
from quietformer.config.options.study import PaperOptions
from quietformer.files import check_place
from quietformer.results.base import Report


class PaperOutput(JsonOutput):
    """What `paper` leaves behind, if anything."""

    html: Annotated[Path | None, Flag("PATH")] = Field(default=None, description="Also write it as a page.")

    def check(self) -> None:
        super().check()
        check_place(self.html)

    def write(self, report: Report) -> None:
        super().write(report)
        if self.html is not None:
            report.to_html(self.html)


def paper(
    options: PaperOptions,
    output: PaperOutput,
    item: str = typer.Argument("", metavar="[ITEM]", help="Show this one in full, e.g. table2 or figure6."),
) -> None:
    """List the paper's tables and figures, or show one: its results, ours, and the commands that make it.

    Results marked paper are the paper's own. Results marked ours were measured here, at the size that is given with them.
    """
    output.check()
    with working("reading"):
        from quietformer.study import paper as verb

        report = verb.paper(item, options)
    output.write(report)
    print(report)  # tables as wide as it takes: a number that is cut is another number
    if not item:
        print("\nquietformer paper ITEM shows one in full; --html PATH writes all of them as a page")
    if output.html is not None:
        print(f"\npage {output.html}")
