"""Functions of Quietformer as the source has them, and which of them another package calls."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.package_graph import SOURCE, package_of

Definition = ast.FunctionDef | ast.AsyncFunctionDef
UNTYPED = ("dict[str, Any]", "Mapping[str, Any]", "MutableMapping[str, Any]")


def untyped_aliases() -> set[str]:
    """Names that stand for an untyped dictionary, or for another such name: `Row = dict[str, Any]`."""
    given = [pair for path in sorted(SOURCE.rglob("*.py")) for pair in _aliases(ast.parse(path.read_text("utf-8")))]
    found: set[str] = set()
    while more := {name for name, meaning in given if is_untyped(meaning, found)} - found:
        found |= more
    return found


def _aliases(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(name, what it stands for) of the names with a capital that a module assigns a subscript: `Fields = dict[...]`."""
    for node in tree.body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if value is None or not any(isinstance(part, ast.Subscript) for part in ast.walk(value)):
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name) and target.id[:1].isupper():
                yield target.id, ast.unparse(value)


def is_untyped(annotation: str, aliases: set[str]) -> bool:
    return any(kind in annotation for kind in UNTYPED) or bool(set(re.findall(r"\w+", annotation)) & aliases)


@dataclass(frozen=True)
class Function:
    """One function or method."""

    path: Path
    owner: str  # the class it belongs to, or nothing
    node: Definition

    @property
    def name(self) -> str:
        return f"{self.path.relative_to(SOURCE).as_posix()}:{self.owner + '.' if self.owner else ''}{self.node.name}"

    @property
    def parameters(self) -> list[ast.arg]:
        given = self.node.args
        found = [*given.posonlyargs, *given.args, *given.kwonlyargs]
        found += [arg for arg in (given.vararg, given.kwarg) if arg is not None]
        return [arg for arg in found if arg.arg not in ("self", "cls")]

    @property
    def annotations(self) -> list[str]:
        found = [arg.annotation for arg in self.parameters] + [self.node.returns]
        return [ast.unparse(annotation) for annotation in found if annotation is not None]

    @property
    def lines(self) -> int:
        return (self.node.end_lineno or self.node.lineno) - self.node.lineno + 1


def functions() -> Iterator[Function]:
    """Every function of the source, nested ones too."""
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        owners = {
            id(member): node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for member in node.body
        }
        for node in ast.walk(tree):
            if isinstance(node, Definition):
                yield Function(path, owners.get(id(node), ""), node)


def imported_elsewhere() -> set[tuple[str, str]]:
    """(module, name) of everything that a file of another package imports."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("quietformer."):
                continue
            parts = str(node.module).split(".")
            if parts[1] != package_of(path):
                found |= {(str(node.module), alias.name) for alias in node.names}
    return found


def called_elsewhere() -> Iterator[Function]:
    """Public functions that another package imports, and public methods of classes that another package imports."""
    imported = imported_elsewhere()
    for function in functions():
        module = ".".join(("quietformer", *function.path.relative_to(SOURCE).with_suffix("").parts))
        name = function.owner or function.node.name
        if (module, name) in imported and not function.node.name.startswith("_"):
            yield function
