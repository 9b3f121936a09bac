"""What a report says, however a terminal lays it out."""

from __future__ import annotations

from quietformer.results.base import Report


def words_of(report: Report) -> set[str]:
    """Every word of its sentences, tables and footnotes."""
    words = {word for line in (*report.sentences(), *report.footnotes()) for word in line.split()}
    for table in report.tables():
        cells = [table.title, *table.columns, *(cell for row in table.rows for cell in row)]
        words |= {word for cell in cells for word in cell.split()}
    return words
