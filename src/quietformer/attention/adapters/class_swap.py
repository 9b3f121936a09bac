"""Attention that no interface reaches: the class of each module is swapped for a subclass with the core in it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import Tensor, nn

from quietformer.attention.core import AttentionCore, LayerCall
from quietformer.attention.layers import CORE, AttentionLayer, interface_caller
from quietformer.config.attention import HeadGeometry


@dataclass(frozen=True)
class Adapter:
    """One such class of attention: how it is found, given a core, and given back."""

    home: str  # the module the class is found in; never imported to look for it, since a model that uses it has done so
    original: str  # the class
    name: str  # of the class that takes its place
    forward: Callable[..., Any]  # what the original computes, by way of `attend`
    geometry: Callable[[Any], HeadGeometry]
    bare: bool = False  # whether the models that use it need not be transformers'

    def find(self, model: nn.Module) -> list[AttentionLayer]:
        """Every module of exactly this class, replaced already or not."""
        original = getattr(sys.modules.get(self.home), self.original, None)
        # On the interface, as a later release may put it, it needs no swapping.
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
"""Every such class that is known; a file of this package appends its own."""


def attend(
    module: nn.Module, inputs: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **how: Any
) -> tuple[Tensor, Tensor | None]:
    """What the core of this module gives, told what the module was called with."""
    core = module._modules[CORE]
    assert isinstance(core, AttentionCore)
    core.begin(LayerCall(inputs=inputs))
    try:
        given: tuple[Tensor, Tensor | None] = core(query, key, value, mask, **how)
        return given
    finally:
        core.end()


@cache
def _quiet_class(adapter: Adapter) -> Any:
    """A subclass, so that isinstance, parameters and names stay those of the library."""
    original = getattr(sys.modules[adapter.home], adapter.original)

    def reduce(module: nn.Module, protocol: object) -> tuple[Any, ...]:
        # The class is made in each process anew, so a pickle says how instead of where it lies.
        return _blank, (adapter,), vars(module)

    members = {
        "forward": adapter.forward,
        "__reduce_ex__": reduce,
        # The library's, as the layer is: what lies in our own modules is taken for a part of the core when a model is traced.
        "__module__": original.__module__,
    }
    return type(adapter.name, (original,), members)


def _blank(adapter: Adapter) -> nn.Module:
    """A module to be filled by a pickle or a copy, also in a process that has not met the library yet."""
    importlib.import_module(adapter.home)
    quiet = _quiet_class(adapter)
    module: nn.Module = quiet.__new__(quiet)
    return module
