"""The table of docs/paper.md, as `quietformer paper` prints it.

python -m tools.paper_table
"""

from __future__ import annotations

from pathlib import Path

from tools.tables import markdown, write_between

from quietformer.study.paper import overview, paper_figures

PAGE = Path(__file__).resolve().parents[1] / "docs" / "paper.md"
MARK = "paper"


def paper_table() -> str:
    return markdown(overview(paper_figures()))


if __name__ == "__main__":
    write_between(PAGE, MARK, paper_table())
