"""The built-in text: English documentation of installed packages, read from where they are installed."""

from __future__ import annotations

import ast
import importlib.util
import re
import sysconfig
import textwrap
from collections.abc import Iterator
from pathlib import Path

SHORTEST = 80
"""A paragraph below this many characters is rarely a sentence."""

PACKAGES = ("numpy", "torch", "transformers")

_SENTENCE = re.compile(r"^[A-Z][^\n]*[a-z]")

_LETTERS = re.compile(r"[A-Za-z ,.;:'()-]")


def builtin_paragraphs() -> Iterator[str]:
    """Paragraphs in a fixed order: Python's language reference, then docstrings of its library and of packages."""
    seen: set[str] = set()
    for text in _topics():
        yield from _fresh(text, seen)
    for folder in _folders():
        for path in sorted(folder.rglob("*.py")):
            if "test" not in path.as_posix():
                for docstring in _docstrings(path):
                    yield from _fresh(docstring, seen)


def paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a text that read as sentences, each on one line."""
    for block in re.split(r"\n\s*\n", textwrap.dedent(text)):
        line = " ".join(block.split())
        if len(line) >= SHORTEST and _SENTENCE.match(line) and len(_LETTERS.findall(line)) > 0.9 * len(line):
            yield line


def _fresh(text: str, seen: set[str]) -> Iterator[str]:
    for paragraph in paragraphs(text):
        if paragraph not in seen:
            seen.add(paragraph)
            yield paragraph


def _topics() -> Iterator[str]:
    from pydoc_data.topics import topics

    for name in sorted(topics):
        yield topics[name]


def _folders() -> Iterator[Path]:
    yield Path(sysconfig.get_path("stdlib"))
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin:
            yield Path(spec.origin).parent


def _docstrings(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if docstring := ast.get_docstring(node, clean=True):
            yield docstring
