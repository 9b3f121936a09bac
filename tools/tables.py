"""Tables in the documents, between two marks, written by whatever measured them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from quietformer.files import write_text


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """A table; the first line is its heading."""
    heading, *rows = lines
    return "".join(f"| {' | '.join(line)} |\n" for line in (heading, ["---"] * len(heading), *rows))


def between(text: str, mark: str, content: str) -> str:
    """The text with what stands between two marks replaced."""
    begin, end = f"<!-- {mark} -->\n", f"<!-- /{mark} -->"
    before, rest = text.split(begin)
    return before + begin + content + end + rest.split(end)[1]


def write_between(path: Path, mark: str, content: str) -> None:
    write_text(path, between(path.read_text(encoding="utf-8"), mark, content.rstrip("\n") + "\n"))
