"""Puts quantizers into a model at named tensors, and removes them.

A quantizer is stored near the module that owns its tensor, in a child called `quant`, or replaces a tap of the attention core.
So state dicts include quantizers, and parts of a model keep theirs. The model's own code stays unchanged: hooks replace
weights, inputs and outputs, and a function mode catches residual adds that a module computes with a bare `+`.
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

from quietformer.architectures.dataflow import counted
from quietformer.attention.core import AttentionCore
from quietformer.attention.find_layers import CORE
from quietformer.attention.inject import attention_cores
from quietformer.config.quantization import QuantizedSpec
from quietformer.config.recorded_changes import changes_of, record_changes_
from quietformer.errors import CheckpointError, QuietformerError
from quietformer.quant.quantizer import Grid, Quantizer

HOLDER = "quant"
"""The child module that holds quantizers: those of a module's own adds and products, and those of its direct children.

Not inside a projection itself: when transformers saves some families, it fuses projections (q, k and v into one) together with
their children.
"""

SEAT = "_quietformer_seat"

ENDS = ("weight", "input", "output")

CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


class Holder(nn.ModuleDict):
    """Holds quantizers as part of the model's state."""


class Seat:
    """The quantizers of one module, for its hooks to find; a holder stores them."""

    def __init__(self) -> None:
        self.quantizers: dict[str, Quantizer] = {}
        self.users: set[int] = set()  # threads that run the module
        self.cached: tuple[object, Tensor] | None = None  # the quantized weight, and a key of what it was computed from

    def __getstate__(self) -> dict[str, Any]:
        return {"quantizers": self.quantizers, "users": set(), "cached": None}  # a copy computes its own

    @property
    def has_functions(self) -> bool:
        return any(name not in ENDS for name in self.quantizers)


def place_(model: PreTrainedModel, quantized: QuantizedSpec) -> None:
    """Put an uncalibrated quantizer at every tensor named; after an error none of them stays."""
    try:
        for name, code in quantized.sites.items():
            _place_one_(model, name, Grid.parse(code))
    except BaseException:
        remove_quantizers_(model)
        raise
    if any(quantizer.grid.passes is not None for quantizer in quantizers(model).values()):
        model.register_forward_pre_hook(_begin_passes)
    for module in list(model.modules()):
        if (seat := _seat(module)) is not None and seat.has_functions:
            for child in _called_below(module):
                if _seat(child) is None:
                    _hide_(child)
    write_sites_(model, quantized)


def _called_below(module: nn.Module) -> Iterator[nn.Module]:
    """The children a module calls: not lists of modules, but their members."""
    for child in module.children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            yield from _called_below(child)
        else:
            yield child


def remove_quantizers_(model: nn.Module) -> None:
    """Remove every quantizer."""
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


def forget_weights_(model: nn.Module) -> None:
    """Drop the quantized weights that modules keep for their next call."""
    for module in model.modules():
        if (seat := _seat(module)) is not None:
            seat.cached = None


def quantizers(model: nn.Module) -> dict[str, Quantizer]:
    """Every quantizer of the model by the name of its tensor."""
    return {module.site: module for module in model.modules() if isinstance(module, Quantizer)}


def weight_of(model: nn.Module, site: str) -> Tensor:
    """The parameter that the quantizer of this weight reads."""
    weight = model.get_submodule(site.partition(":")[0])._parameters["weight"]
    assert weight is not None
    return weight


def write_sites_(model: PreTrainedModel, quantized: QuantizedSpec) -> None:
    """Record the quantized tensors in the config of each part that has its own, under the names they have in that part."""
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
        if grid.token:
            raise CheckpointError(f"{name}: a weight has no tokens, so its grid cannot be {grid}")
        if grid.axis is not None and grid.axis >= weight.dim():
            raise CheckpointError(
                f"{name}: a weight of {weight.dim()} dimensions has no channels in dimension {grid.axis}"
            )
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
        raise QuietformerError(
            f"{owner!r} has a sibling named {HOLDER!r}, the name under which its quantizers would be stored"
        )
    holder[key] = quantizer
    if (seat := _seat(module)) is None:
        seat = module.__dict__[SEAT] = Seat()
        module.register_forward_pre_hook(_before, with_kwargs=True)
        module.register_forward_hook(_after, always_call=True)
    seat.quantizers[what] = quantizer


def _home(model: nn.Module, owner: str, what: str) -> tuple[nn.Module, str]:
    """The module that stores the quantizer, and its name there."""
    if what not in ENDS or not owner:
        return model.get_submodule(owner), what
    parts = owner.split(".")
    for above in range(len(parts) - 1, -1, -1):
        home = model.get_submodule(".".join(parts[:above]))
        if not isinstance(home, CONTAINERS):  # a container would count the holder among its members
            return home, _opaque("-".join((*parts[above:], what)))
    return model, _opaque("-".join((*parts, what)))


def _opaque(name: str) -> str:
    """A hash instead of a readable name: transformers renames keys that look like projections when it saves a model."""
    return "n" + hashlib.sha256(name.encode()).hexdigest()[:10]


def _seat(module: nn.Module) -> Seat | None:
    return module.__dict__.get(SEAT)


# Hooks are plain functions that find the quantizers through the module, so that copied models keep working.
def _before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    seat = _seat(module)
    assert seat is not None
    _scopes.enter(module, sys._getframe(1), functions=seat.has_functions)
    if "weight" in seat.quantizers:
        # While the module runs, an instance attribute hides the parameter of the same name; nothing is copied or renamed.
        _cover(module, seat)
    if "input" in seat.quantizers and args:
        return (seat.quantizers["input"](args[0]), *args[1:]), kwargs
    return None


def _after(module: nn.Module, args: Any, output: Any) -> Any:
    _uncover(module)
    _scopes.leave(module)
    seat = _seat(module)
    assert seat is not None
    quantizer = seat.quantizers.get("output")
    return quantizer(output) if quantizer is not None and isinstance(output, Tensor) else None


def _cover(module: nn.Module, seat: Seat) -> None:
    """The quantized weight over the parameter, for as long as a thread runs the module.

    Threads that quantize it alike share it. One that does not, e.g. since it measures in full precision, waits for the others.
    """
    if torch.compiler.is_compiling():
        module.__dict__["weight"] = _weight_on_grid(module, seat)
        return
    me = threading.get_ident()
    with _left:
        weight = _weight_on_grid(module, seat)
        if not _left.wait_for(lambda: seat.users <= {me} or module.__dict__.get("weight") is weight, PATIENCE):
            raise QuietformerError(
                f"another thread has run a {type(module).__name__} of this model for {PATIENCE:.0f} s; use a copy"
            )
        seat.users.add(me)
        module.__dict__["weight"] = weight


def _uncover(module: nn.Module) -> None:
    """The parameter in its place again, unless another thread is still running the module."""
    seat = _seat(module)
    if seat is None or torch.compiler.is_compiling():
        module.__dict__.pop("weight", None)
        return
    with _left:
        seat.users.discard(threading.get_ident())
        if not seat.users:
            module.__dict__.pop("weight", None)
        _left.notify_all()


def _hide_(child: nn.Module) -> None:
    """Keep functions that a child without quantizers computes from being counted as its parent's."""
    child.register_forward_pre_hook(_before_child)
    child.register_forward_hook(_after_child, always_call=True)


def _before_child(module: nn.Module, args: Any) -> None:
    _scopes.enter(module, sys._getframe(1), functions=False)


def _after_child(module: nn.Module, args: Any, output: Any) -> None:
    _scopes.leave(module)


def _begin_passes(model: nn.Module, args: Any) -> None:
    for quantizer in quantizers(model).values():
        if quantizer.grid.passes is not None:
            quantizer.begin_passes_()


_OUR_HOOKS = (_before, _after, _before_child, _after_child, _begin_passes)


def _weight_on_grid(module: nn.Module, seat: Seat) -> Tensor:
    weight, quantizer = module._parameters["weight"], seat.quantizers["weight"]
    assert weight is not None
    learning = weight.requires_grad and torch.is_grad_enabled()
    inference = torch.is_inference_mode_enabled() or weight.is_inference()  # inference tensors have no version counter
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
    """A few of its values: changes through `.data`, such as merging an adapter, do not change the version counter."""
    flat = weight.detach().flatten()
    return tuple(flat[:: max(1, len(flat) // 64)][:64].tolist())


@dataclass
class _Scope:
    """A running call: its module, its frame, and how many adds, products and activations it has computed so far."""

    module: nn.Module
    frame: FrameType
    counts: Counter[str] | None  # None: no function result of this module is quantized


class _Scopes(threading.local):
    """The running calls of this thread.

    torch calls the hooks after a module for errors but not for a KeyboardInterrupt, so an entry may outlive its call. Once its
    frame is off the stack, the entry and the weight it replaced are cleared.
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
                _uncover(scope.module)
            self.running.clear()


_scopes = _Scopes()

_left = threading.Condition()
"""Held while a quantized weight is put over a parameter; told when a thread has left a module."""

PATIENCE = 60.0
"""Seconds that a thread waits for one that runs the same module otherwise."""


class _QuantizeFunctions(TorchFunctionMode):
    """Quantizes the adds, products and activations that the running module computes with functions."""

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
        # Do not count the functions that the quantizer itself calls.
        counts, scope.counts = scope.counts, None
        try:
            return quantizer(output)
        finally:
            scope.counts = counts
