"""The table of docs/paper.md, as `quietformer paper` prints it.

python -m tools.paper_table
"""

from __future__ import annotations

from pathlib import Path

from tools.tables import markdown, write_between

from quietformer.study.paper import paper

PAGE = Path(__file__).resolve().parents[1] / "docs" / "paper.md"
MARK = "paper"


def paper_table() -> str:
    table = paper().overview()
    return markdown([table.columns, *table.rows])


if __name__ == "__main__":
    write_between(PAGE, MARK, paper_table())
