"""What an installation brings: no development tool, no result, and everything the package reads."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import requires

from tests.package_graph import SOURCE

PROJECT = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())
DEVELOPMENT = {"pytest", "pytest-xdist", "mypy", "ruff", "hypothesis", "playwright", "pre-commit", "matplotlib"}


def name_of(requirement):
    return re.match(r"[\w.-]+", requirement).group().lower()


def test_no_development_tool_is_installed_unasked():
    asked = {name_of(line) for line in PROJECT["project"]["dependencies"]}
    installed = {name_of(line) for line in requires("quietformer") if "extra ==" not in line}
    assert not (asked | installed) & DEVELOPMENT
    assert DEVELOPMENT - {"matplotlib"} <= {
        name_of(line) for line in PROJECT["project"]["optional-dependencies"]["dev"]
    }


def test_the_packages_data_are_all_shipped_and_hold_no_result():
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["quietformer"]
    shipped = {path for pattern in patterns for path in SOURCE.glob(pattern) if path.is_file()}
    data = {
        path
        for path in SOURCE.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".c", ".so", ".pyc") and "__pycache__" not in path.parts
    }
    assert {path.relative_to(SOURCE).as_posix() for path in data - shipped} == set()
    kept = {path.relative_to(SOURCE).as_posix() for path in shipped if path.suffix == ".json"}
    assert kept == {"recipes/paper/figures.json"}, "the paper's tables are data; our results are in experiments/"
