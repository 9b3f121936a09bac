"""A plan in words and tables, for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quietformer.results.plan import PlanReport


def print_plan(report: PlanReport) -> None:
    """Print what `plan` found."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    title, *lines = report.sentences()
    console.print(f"\n{title}", style="bold")
    for line in lines:
        console.print(line)
    for found in report.tables():
        table = Table(title=f"\n{found.title}", title_justify="left")
        for place, column in enumerate(found.columns):
            table.add_column(column, justify="left" if place in found.left else "right")
        *parts, total = found.rows
        for row in parts:
            table.add_row(*row)
        table.add_section()
        table.add_row(*total, style="bold")
        console.print(table)
    for place, line in enumerate(report.time_in_words()):
        console.print(line if place else f"\n{line}", style=None if place else "bold")
    for note in report.notes:
        console.print(note, style="dim")
