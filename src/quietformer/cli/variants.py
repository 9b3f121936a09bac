"""`quietformer variants`: what exists, with fields and defaults."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from quietformer.cli.progress import working
from quietformer.files import write_json

if TYPE_CHECKING:
    from quietformer.config.registry import Registry
    from quietformer.config.spec import Spec


def variants(
    json_path: Path | None = typer.Option(None, "--json", metavar="PATH", help="Also write the list as JSON."),
) -> None:
    """List the normalizers and gates, their fields and defaults."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    with working("starting"):
        from quietformer.config.attention import gates, normalizers

        listing = {"normalizers": _describe(normalizers), "gates": _describe(gates)}
    console = Console(highlight=False)
    for title, rows in (("Normalizers (--attention)", listing["normalizers"]), ("Gates (--gate)", listing["gates"])):
        console.print(Text(f"\n{title}", style="bold"))
        for row in rows:
            console.print(Text(f"  {row['name']}", style="bold cyan"))
            console.print(Padding(row["meaning"], (0, 0, 0, 4)))
            grid = Table.grid(padding=(0, 2, 0, 0))
            for field in row["fields"]:
                grid.add_row(f"      {field['name']} = {field['default']}", field["meaning"])
            console.print(grid)
    console.print(Text("\nWrite one as name(field=value), e.g. 'clipped_softmax(alpha=4)' or 'linear(pi_init=0.25)'."))
    write_json(json_path, listing)


def _describe(registry: Registry[Any]) -> list[dict[str, Any]]:
    return [
        {"name": name, "meaning": _first_line(registry[name]), "fields": _fields(registry[name])} for name in registry
    ]


def _first_line(spec: type[Spec]) -> str:
    return (spec.__doc__ or "").strip().splitlines()[0]


def _fields(spec: type[Spec]) -> list[dict[str, Any]]:
    return [
        {"name": name, "default": field.default, "meaning": field.description or ""}
        for name, field in spec.model_fields.items()
    ]
