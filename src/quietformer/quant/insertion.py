"""Putting quantizers into a model at named sites, and taking them out again.

Each lives near the module that owns its tensor, in a child called `quant`, or takes the place of a tap of the attention
core; so a state dict carries them and parts of a model keep theirs. The model's own code is not touched: hooks exchange
weights, inputs and outputs, and sums that a module makes with a bare `+` are caught by a function mode while it runs.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from quietformer.architectures.trace import counted
from quietformer.attention.core import AttentionCore
from quietformer.attention.inject import attention_cores
from quietformer.attention.layers import CORE
from quietformer.config.quantization import QuantizedSpec
from quietformer.config.recorded_changes import changes_of, record_changes_
from quietformer.errors import CheckpointError, QuietformerError
from quietformer.quant.quantizer import Grid, Quantizer

HOLDER = "quant"
"""The child that holds quantizers: those of a module's own sums, and those of the modules right below it.

Not in a projection itself: on disk transformers fuses the projections of some families (q, k and v into one), and with
them whatever lies below.
"""

SEAT = "_quietformer_seat"

ENDS = ("weight", "input", "output")

CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


class Holder(nn.ModuleDict):
    """Quantizers, as part of the model's state."""


class Seat:
    """The quantizers that work on one module, for its hooks to find; they live in a holder."""

    def __init__(self) -> None:
        self.quantizers: dict[str, Quantizer] = {}
        self.cached: tuple[object, Tensor] | None = None  # the weight on its grid, and what it was made from

    def __getstate__(self) -> dict[str, Any]:
        return {"quantizers": self.quantizers, "cached": None}  # a copy makes its own

    @property
    def has_functions(self) -> bool:
        return any(name not in ENDS for name in self.quantizers)


def place_(model: PreTrainedModel, quantized: QuantizedSpec) -> None:
    """Put a quantizer at every site, uncalibrated; all or nothing."""
    try:
        for name, code in quantized.sites.items():
            _place_one_(model, name, Grid.parse(code))
    except BaseException:
        remove_quantizers_(model)
        raise
    for module in list(model.modules()):
        if (seat := _seat(module)) is not None and seat.has_functions:
            for child in _called_below(module):
                if _seat(child) is None:
                    _hide_(child)
    write_sites_(model, quantized)


def _called_below(module: nn.Module) -> Iterator[nn.Module]:
    """The children a module calls: lists of modules are not called, their members are."""
    for child in module.children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            yield from _called_below(child)
        else:
            yield child


def remove_quantizers_(model: nn.Module) -> None:
    """Take every quantizer out."""
    for module in list(model.modules()):
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key in [key for key, hook in hooks.items() if hook in _OUR_HOOKS]:
                del hooks[key]
                module._forward_pre_hooks_with_kwargs.pop(key, None)
                module._forward_hooks_with_kwargs.pop(key, None)
                module._forward_hooks_always_called.pop(key, None)
        if isinstance(module._modules.get(HOLDER), Holder):
            del module._modules[HOLDER]
        module.__dict__.pop("weight", None)
        module.__dict__.pop(SEAT, None)
    for _, core in attention_cores(model):
        for tap in list(core.taps):
            if isinstance(core.taps[tap], Quantizer):
                core.taps[tap] = nn.Identity()
    for part in model.modules():
        if isinstance(part, PreTrainedModel) and changes_of(part).quantized is not None:
            record_changes_(part, changes_of(part).model_copy(update={"quantized": None}))


def quantizers(model: nn.Module) -> dict[str, Quantizer]:
    """Every quantizer of the model by the name of its site."""
    return {module.site: module for module in model.modules() if isinstance(module, Quantizer)}


def weight_of(model: nn.Module, site: str) -> Tensor:
    """The parameter a weight's quantizer works on."""
    weight = model.get_submodule(site.partition(":")[0])._parameters["weight"]
    assert weight is not None
    return weight


def write_sites_(model: PreTrainedModel, quantized: QuantizedSpec) -> None:
    """Each part with a config of its own carries the sites it holds, under the names they have there."""
    written: set[int] = set()
    for prefix, part in model.named_modules():
        if isinstance(part, PreTrainedModel) and id(part.config) not in written:
            written.add(id(part.config))
            start = f"{prefix}." if prefix else ""
            inside = {name[len(start) :]: code for name, code in quantized.sites.items() if name.startswith(start)}
            if inside:
                update = {"quantized": quantized.model_copy(update={"sites": inside})}
                record_changes_(part, changes_of(part).model_copy(update=update))


def _place_one_(model: PreTrainedModel, name: str, grid: Grid) -> None:
    owner, _, what = name.rpartition(":")
    try:
        module = model.get_submodule(owner)
    except AttributeError:
        raise CheckpointError(f"there is no {owner!r} in {type(model).__name__} to quantize") from None
    channels = None
    weight = module._parameters.get("weight")
    if what == "weight":
        if weight is None:
            raise CheckpointError(f"{owner!r} has no weight to quantize")
        if grid.axis is not None and grid.axis >= weight.dim():
            raise CheckpointError(f"{name}: a weight of {weight.dim()} dimensions has no channels along {grid.axis}")
        channels = None if grid.axis is None else weight.shape[grid.axis]
    like = next((tensor for tensor in (*module.parameters(), *model.parameters())), None)
    with torch.device("cpu" if like is None else like.device):
        quantizer = Quantizer(name, grid, channels).train(module.training)
    core = module._modules.get(CORE)
    if isinstance(core, AttentionCore) and what in core.taps:
        core.taps[what] = quantizer
        return
    home, key = _home(model, owner, what)
    holder = home._modules.get(HOLDER)
    if holder is None:
        holder = Holder().train(module.training)
        home.add_module(HOLDER, holder)
    elif not isinstance(holder, Holder):
        raise QuietformerError(f"{owner!r} has a neighbour called {HOLDER!r}, where its quantizers would live")
    holder[key] = quantizer
    if (seat := _seat(module)) is None:
        seat = module.__dict__[SEAT] = Seat()
        module.register_forward_pre_hook(_before, with_kwargs=True)
        module.register_forward_hook(_after, always_call=True)
    seat.quantizers[what] = quantizer


def _home(model: nn.Module, owner: str, what: str) -> tuple[nn.Module, str]:
    """Where the quantizer lives, and under which name there."""
    if what not in ENDS or not owner:
        return model.get_submodule(owner), what
    parts = owner.split(".")
    for above in range(len(parts) - 1, -1, -1):
        home = model.get_submodule(".".join(parts[:above]))
        if not isinstance(home, CONTAINERS):  # which would count it among their members
            return home, _opaque("-".join((*parts[above:], what)))
    return model, _opaque("-".join((*parts, what)))


def _opaque(name: str) -> str:
    """A name that says nothing: transformers renames what looks like a projection on disk, wherever it stands."""
    return "n" + hashlib.sha256(name.encode()).hexdigest()[:10]


def _seat(module: nn.Module) -> Seat | None:
    return module.__dict__.get(SEAT)


# Hooks are plain functions that find their quantizers through the module, so a copied model keeps working.
def _before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    seat = _seat(module)
    assert seat is not None
    _scopes.enter(module, sys._getframe(1), functions=seat.has_functions)
    if "weight" in seat.quantizers:
        # An attribute of the instance hides the parameter of that name while the module runs; nothing is copied or renamed.
        module.__dict__["weight"] = _weight_on_grid(module, seat)
    if "input" in seat.quantizers and args:
        return (seat.quantizers["input"](args[0]), *args[1:]), kwargs
    return None


def _after(module: nn.Module, args: Any, output: Any) -> Any:
    module.__dict__.pop("weight", None)
    _scopes.leave(module)
    seat = _seat(module)
    assert seat is not None
    quantizer = seat.quantizers.get("output")
    return quantizer(output) if quantizer is not None and isinstance(output, Tensor) else None


def _hide_(child: nn.Module) -> None:
    """What a child without quantizers computes is not the parent's."""
    child.register_forward_pre_hook(_before_child)
    child.register_forward_hook(_after_child, always_call=True)


def _before_child(module: nn.Module, args: Any) -> None:
    _scopes.enter(module, sys._getframe(1), functions=False)


def _after_child(module: nn.Module, args: Any, output: Any) -> None:
    _scopes.leave(module)


_OUR_HOOKS = (_before, _after, _before_child, _after_child)


def _weight_on_grid(module: nn.Module, seat: Seat) -> Tensor:
    weight, quantizer = module._parameters["weight"], seat.quantizers["weight"]
    assert weight is not None
    learning = weight.requires_grad and torch.is_grad_enabled()
    inference = torch.is_inference_mode_enabled() or weight.is_inference()  # such tensors have no version to go by
    if quantizer.mode != "quantize" or torch.compiler.is_exporting() or learning or inference:
        made: Tensor = quantizer(weight)
        return made
    key = (
        weight.data_ptr(), weight._version, weight.dtype, quantizer.scale_pattern._version, quantizer.scale_pattern.data_ptr(),
        quantizer.zero_point._version, _sample(weight),
    )  # fmt: skip
    if seat.cached is None or seat.cached[0] != key:
        with torch.no_grad():
            seat.cached = (key, quantizer(weight))
    return seat.cached[1]


def _sample(weight: Tensor) -> tuple[float, ...]:
    """A few of its values: edits through `.data`, as merging an adapter makes, leave the version as it was."""
    flat = weight.detach().flatten()
    return tuple(flat[:: max(1, len(flat) // 64)][:64].tolist())


@dataclass
class _Scope:
    """A call under way: of which module, from which frame, and how many sums it has made so far."""

    module: nn.Module
    frame: FrameType
    counts: Counter[str] | None  # None: nothing this module makes by functions is quantized


class _Scopes(threading.local):
    """The calls under way in this thread.

    torch calls the hooks after a module for errors but not for an interrupt, so an entry may outlive its call. Its frame
    tells: once that is off the stack, the entry and what it left behind are cleared away.
    """

    def __init__(self) -> None:
        self.running: list[_Scope] = []
        self.mode: _QuantizeFunctions | None = None

    def enter(self, module: nn.Module, frame: FrameType, *, functions: bool) -> None:
        self.clear_interrupted(frame)
        self.running.append(_Scope(module, frame, Counter() if functions else None))
        if functions and self.mode is None:
            self.mode = _QuantizeFunctions()
            self.mode.__enter__()  # type: ignore[no-untyped-call]

    def leave(self, module: nn.Module) -> None:
        if any(scope.module is module for scope in self.running):
            while self.running.pop().module is not module:
                pass
        if not self.running and self.mode is not None:
            mode, self.mode = self.mode, None
            mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def clear_interrupted(self, frame: FrameType | None) -> None:
        if not self.running:
            return
        while frame is not None and frame is not self.running[-1].frame:
            frame = frame.f_back
        if frame is None:
            for scope in self.running:
                scope.module.__dict__.pop("weight", None)
            self.running.clear()


_scopes = _Scopes()


class _QuantizeFunctions(TorchFunctionMode):
    """Quantizes the sums, products and activations that the running module makes by functions."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        scope = _scopes.running[-1] if _scopes.running else None
        if scope is None or scope.counts is None or (name := counted(func, args, output)) is None:
            return output
        _scopes.clear_interrupted(sys._getframe())
        if not _scopes.running:
            return output
        index, scope.counts[name] = scope.counts[name], scope.counts[name] + 1
        seat = _seat(scope.module)
        quantizer = None if seat is None else seat.quantizers.get(f"{name}_{index}")
        if quantizer is None:
            return output
        # The quantizer's own arithmetic is not the module's.
        counts, scope.counts = scope.counts, None
        try:
            return quantizer(output)
        finally:
            scope.counts = counts
