"""Tables in the documents: Markdown, between two marks."""

from __future__ import annotations

from collections.abc import Sequence


def markdown(lines: Sequence[Sequence[object]]) -> str:
    """A table; the first line is its heading."""
    heading, *rows = lines
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in (heading, ["---"] * len(heading), *rows))


def between(text: str, mark: str, content: str) -> str:
    """The text with the part between `<!-- mark -->` and `<!-- /mark -->` replaced."""
    begin, end = f"<!-- {mark} -->\n", f"<!-- /{mark} -->"
    before, rest = text.split(begin)
    return before + begin + content.rstrip("\n") + "\n" + end + rest.split(end)[1]
