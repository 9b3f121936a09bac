"""A table as people read it: text in columns, the same on a terminal, in Markdown and in a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Table:
    """Columns of text; the first column is a name, the others are numbers unless `left` says otherwise."""

    title: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = field(default_factory=list)
    left: frozenset[int] = frozenset({0})

    def markdown(self) -> str:
        """For documents; a bar in a cell would end it."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)

    def __str__(self) -> str:
        lines = [self.columns, *self.rows]
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        text = [
            "  ".join(
                cell.ljust(width) if place in self.left else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        return "\n".join([self.title, *text] if self.title else text)
