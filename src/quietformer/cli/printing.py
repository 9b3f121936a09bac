"""A report on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from quietformer.results.base import Report
from quietformer.results.tables import Table

WIDE = 160
"""Columns of a file or a pipe, which has no edge to break lines at."""


def print_report(report: Report) -> None:
    """What `print(report)` says: its sentences, the first in bold, its tables, and what stands below them."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False, soft_wrap=True)
    for place, line in enumerate(report.sentences()):
        console.print(Text(line, style="" if place else "bold"))
    _print_tables(report.tables())
    for line in report.footnotes():
        console.print(Text(line, style="dim"))


def _print_tables(tables: Sequence[Table]) -> None:
    """Tables one below the other; names may be folded where it is narrow, numbers never."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as RichTable

    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else WIDE)
    for table in tables:
        shown = RichTable(title=f"\n{table.title}", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        for place, column in enumerate(table.columns):
            left = place in table.left
            shown.add_column(column, justify="left" if left else "right", no_wrap=not left, overflow="fold")
        for row in table.rows:
            shown.add_row(*row)
        console.print(shown)
