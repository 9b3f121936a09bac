"""Making transformers know Quietformer as soon as both are imported, without importing transformers first.

`import quietformer` must be enough for `AutoModel.from_pretrained(folder)`, and `quietformer --help` must not pay for
torch.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

TRIGGER = "transformers.modeling_utils"
"""Whatever loads a model imports this first."""


class _AfterImport(importlib.abc.MetaPathFinder):
    """Wraps the loader of one module so that registration follows its execution."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != TRIGGER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _RegisteringLoader(spec.loader)
        return spec


class _RegisteringLoader(importlib.abc.Loader):
    def __init__(self, inner: importlib.abc.Loader) -> None:
        self.inner = inner

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.inner.exec_module(module)
        _register()


def _register() -> None:
    importlib.import_module("quietformer.models.pretrained_hooks")  # registers itself


def install() -> None:
    """Register now if transformers' models are loaded already, else when they are."""
    if TRIGGER in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _AfterImport())
