"""Attention outside transformers' attention interface: each module's class is swapped for a subclass that calls the core."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import Tensor, nn

from quietformer.attention.core import AttentionCore, LayerCall
from quietformer.attention.find_layers import CORE, AttentionLayer, interface_caller
from quietformer.config.attention import HeadGeometry


@dataclass(frozen=True)
class Adapter:
    """How one such attention class is found, replaced and restored."""

    home: str  # the Python module of the class; never imported to search for it, since a model that uses it has done so
    original: str  # the name of the class
    name: str  # the name of the class that replaces it
    forward: Callable[..., Any]  # the forward method of the replacement, which calls the core through `core_of`
    geometry: Callable[[Any], HeadGeometry]
    bare: bool = False  # whether the class is also used in models that are not transformers' own

    def find(self, model: nn.Module) -> list[AttentionLayer]:
        """Every module of exactly this class, whether already replaced or not."""
        original = getattr(sys.modules.get(self.home), self.original, None)
        # A later release may move the class to the attention interface; then it needs no swapping.
        if original is None or interface_caller(original) is not None:
            return []
        kinds = (original, _quiet_class(self))
        return [
            AttentionLayer(name, module, self.geometry(module))
            for name, module in model.named_modules()
            if type(module) in kinds
        ]

    def attach_(self, module: nn.Module, core: AttentionCore) -> None:
        module.add_module(CORE, core)
        module.__class__ = _quiet_class(self)

    def detach_(self, module: nn.Module) -> None:
        module._modules.pop(CORE, None)
        module.__class__ = getattr(sys.modules[self.home], self.original)


ADAPTERS: list[Adapter] = []
"""Every known adapter; each file of this package appends its own."""


@contextlib.contextmanager
def core_of(module: nn.Module, inputs: Tensor) -> Iterator[AttentionCore]:
    """The core of this module, to be called once; its gate reads the inputs the module was called with."""
    core = module._modules[CORE]
    assert isinstance(core, AttentionCore)
    core.begin(LayerCall(inputs=inputs))
    try:
        yield core
    finally:
        core.end()


@cache
def _quiet_class(adapter: Adapter) -> Any:
    """A subclass of the original, so that isinstance, parameters and names stay those of the library."""
    original = getattr(sys.modules[adapter.home], adapter.original)

    def reduce(module: nn.Module, protocol: object) -> tuple[Any, ...]:
        # The class is created anew in each process, so a pickle stores how to create it instead of where to import it.
        return _blank, (adapter,), vars(module)

    members = {
        "forward": adapter.forward,
        "__reduce_ex__": reduce,
        # The library's module: a class in one of our modules would count as part of the core when a model is traced.
        "__module__": original.__module__,
    }
    return type(adapter.name, (original,), members)


def _blank(adapter: Adapter) -> nn.Module:
    """An empty module for pickle or copy to fill, also in a process that has not imported the library yet."""
    importlib.import_module(adapter.home)
    quiet = _quiet_class(adapter)
    module: nn.Module = quiet.__new__(quiet)
    return module
