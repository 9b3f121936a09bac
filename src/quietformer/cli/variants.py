"""`quietformer variants`: every normalizer and gate, with parameters and defaults."""

from __future__ import annotations

from quietformer.cli.progress import working
from quietformer.cli.report_files import JsonOutput


def variants(output: JsonOutput) -> None:
    """List the normalizers and gates, their parameters and defaults."""
    output.check()
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    with working("starting"):
        from quietformer.workflows import listings

        report = listings.variants()
    output.write(report)
    console = Console(highlight=False)
    for title, entries in (("Normalizers (--attention)", report.normalizers), ("Gates (--gate)", report.gates)):
        console.print(Text(f"\n{title}", style="bold"))
        for entry in entries:
            console.print(Text(f"  {entry.name}", style="bold cyan"))
            console.print(Padding(entry.meaning, (0, 0, 0, 4)))
            grid = Table.grid(padding=(0, 2, 0, 0))
            for field in entry.fields:
                grid.add_row(f"      {field.name} = {field.default}", field.meaning)
            console.print(grid)
    for text in report.sentences():
        console.print(Text(f"\n{text}"))
