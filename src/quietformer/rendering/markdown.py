"""Text of other people in Markdown: names of models and files are shown as they are and mean nothing."""

from __future__ import annotations

import re

from quietformer.results.labels import printable

MARKS = re.compile(r"([\\`*_{}\[\]<>()#+!|~&$:@-])")
"""What could begin emphasis, a link, an image, a tag, an entity, a formula or an address that is linked by itself."""


def escaped(text: str) -> str:
    """As plain text, on one line."""
    return MARKS.sub(r"\\\1", printable(text))


def code(text: str) -> str:
    """As a code span, on one line; its fence is longer than any in the text."""
    line = printable(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{space}{line}{space}{fence}"
