"""The packages of Quietformer and which imports which, read from the source; `python -m tests.package_graph` draws it.

Imports inside functions and for type checkers count like any other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "quietformer"
DRAWING = ROOT / "docs" / "architecture.md"
SHARED = ("errors", "files", "progress")
"""Imported nearly everywhere, so the drawing leaves them out."""
Edges = set[tuple[str, str]]


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(tree: ast.Module) -> Iterator[str]:
    """Packages of ours that a file imports anywhere in it."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "quietformer":
            names = [f"quietformer.{alias.name}" for alias in node.names if alias.name != "__version__"]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        for name in names:
            top, _, rest = name.partition(".")
            if top == "quietformer":
                yield rest.partition(".")[0] or "__init__"


def edges() -> Edges:
    """Every (importing package, imported package)."""
    return {
        (package_of(path), there)
        for path in SOURCE.rglob("*.py")
        for there in imported(ast.parse(path.read_text(encoding="utf-8")))
        if there != package_of(path)
    }


def reachable(start: str, given: Edges) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        here = waiting.pop()
        for there in {b for a, b in given if a == here} - found:
            found.add(there)
            waiting.append(there)
    return found


def reduced(given: Edges) -> Edges:
    """Without edges that follow from others: what is reached in two steps need not be drawn as one."""
    return {
        (a, b)
        for a, b in given
        if not any(b in reachable(other, given) for one, other in given if one == a and other != b)
    }


def drawing() -> str:
    """The graph in Mermaid, an arrow from each package to what it builds on."""
    shown = {(a, b) for a, b in edges() if not {a, b} & {*SHARED, "__init__", "__main__", "_autoload", "api"}}
    lines = sorted(f"    {a} --> {b}" for a, b in reduced(shown))
    return "\n".join(["```mermaid", "graph TD", *lines, "```"])


def main() -> None:
    text = DRAWING.read_text(encoding="utf-8")
    before, _, rest = text.partition("<!-- graph -->\n")
    _, _, after = rest.partition("\n<!-- /graph -->")
    DRAWING.write_text(f"{before}<!-- graph -->\n{drawing()}\n<!-- /graph -->{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
