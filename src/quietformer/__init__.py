"""Quietformer: transformers whose attention heads can do nothing, and so quantize to INT8 as they are."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

from quietformer import _autoload

__version__ = "0.1.0"

_HOMES = {
    alias.name: str(node.module)
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
"""Every public name and the module it comes from, as the stub beside this file lists them."""

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    """Public names load on first use, so that `quietformer --help` does not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'quietformer' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


_autoload.install()
