"""The shape of the project: imports point one way, the public names are few and all there."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import quietformer as qf

SOURCE = Path(qf.__file__).parent
LEVELS = {  # a room may import from rooms of its own level or below
    "errors": 0, "_autoload": 0, "files": 0, "specs": 1, "forward": 1, "model_spec": 2, "section": 2, "recipe": 2,
    "attention": 3, "families": 3, "quant": 3,
    "checkpoint": 4, "sources": 5, "data": 5, "train": 5, "analysis": 5, "export": 5, "study": 6, "report": 6, "cli": 7,
    "__main__": 8, "__init__": 8,
}  # fmt: skip


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def imports(tree: ast.Module):
    """Modules of ours imported when the file is: not those inside functions or for type checkers alone."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("quietformer"):
            yield from (
                [f"quietformer.{a.name}" for a in node.names] if node.module == "quietformer" else [node.module]
            )
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("quietformer"))


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path):
    here = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    for module in imports(ast.parse(path.read_text())):
        assert LEVELS[room(module)] <= LEVELS[here], f"{here} imports {module}"


def test_the_public_names_are_few_and_all_there():
    assert len(qf.__all__) <= 25
    assert sorted(qf._HOMES) == sorted(set(qf.__all__) - {"__version__"})
    for name in qf.__all__:
        assert getattr(qf, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = qf.nope


def test_type_checkers_see_every_public_name():
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == {name: f"quietformer.{home}" for name, home in qf._HOMES.items()}


def test_the_command_line_starts_without_torch():
    code = "import sys, quietformer.cli.main; sys.exit(any(n in sys.modules for n in ('torch', 'transformers')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
