"""Traces which tensor flows where in one forward pass; quantizer placement and weight transforms are decided from it.

Families write residual adds, activation functions and projections in many ways, and a list of module names would cover only
known families. So one small forward pass is recorded: every call of an elementary module (a projection, a norm, an activation
function, an embedding, a tap of the attention core) and every torch function in between.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from transformers.pytorch_utils import Conv1D

from quietformer.attention.core import AttentionCore, Tap
from quietformer.attention.masks import HIDDEN_BELOW

ACTIVATION_FUNCTIONS = {
    "gelu", "relu", "relu6", "silu", "sigmoid", "tanh", "elu", "selu", "mish", "softplus", "hardswish", "leaky_relu",
}  # fmt: skip

COUNTED = {"add": "add", "add_": "add", "iadd": "add", "mul": "mul", "mul_": "mul"} | {
    name: name for name in (*ACTIVATION_FUNCTIONS, "matmul", "bmm", "baddbmm", "einsum")
}
"""Functions whose results may be quantized; named by function and by its position in one call of a module (`add_0`)."""

SHAPING = {
    "view", "reshape", "transpose", "permute", "contiguous", "to", "float", "type", "type_as", "half", "bfloat16",
    "unsqueeze", "squeeze", "flatten", "unflatten", "split", "chunk", "unbind", "tensor_split", "__getitem__", "cat",
    "concat", "stack", "expand", "expand_as", "repeat", "repeat_interleave", "dropout", "roll", "pad", "clone", "detach",
    "t", "movedim", "swapaxes", "narrow", "select", "index_select", "gather", "masked_fill", "where", "__get__", "unfold",
    "constant_pad_nd", "requires_grad_", "masked_scatter", "flip",
}  # fmt: skip
"""Functions that move values without changing them: quantized values stay on their grid."""

MODULE_KINDS = ("projection", "norm", "embedding", "tap", "activation", "inside", "input")

PROJECTIONS = (nn.Linear, Conv1D, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass
class Step:
    """One call of a module or function, and the steps that produced its inputs."""

    kind: str  # projection, norm, activation, embedding, tap, input, inside, or the name of a function
    site: str  # the name of a module; for a function, the module it ran in and its own name: `encoder.layer.0:add_0`
    module: nn.Module | None
    sources: list[int]
    several: bool = False  # the module returned more than one tensor, as routers do
    empty: bool = False  # all results are empty: an expert without tokens, a branch without images
    computed: bool = True  # depends on the model's activations, not only on masks and positions
    masked: bool = False  # a mask was added; its minimum would make the quantization range useless
    scalar: bool = False  # an addition or product with a single number, which needs no quantizer of its own
    shape: tuple[int, ...] = ()  # of what a tap of the attention core passes on
    readers: list[int] = field(default_factory=list)

    @property
    def shaping(self) -> bool:
        return self.kind in SHAPING or self.scalar


@dataclass
class Trace:
    """Every step of one forward pass, in order."""

    steps: list[Step]
    owners: dict[int, str]  # id of a module to its name

    def readers(self, index: int) -> Iterator[Step]:
        """The steps that read this step's result, looking through steps that only move values."""
        for reader in self.steps[index].readers:
            if self.steps[reader].shaping:
                yield from self.readers(reader)
            else:
                yield self.steps[reader]

    def origins(self, index: int) -> Iterator[tuple[int, Step]]:
        """The steps that computed this result, looking through steps that only move values."""
        step = self.steps[index]
        if not step.shaping:
            yield index, step
            return
        for source in step.sources:
            yield from self.origins(source)


def counted(function: Any, args: tuple[Any, ...], output: Any) -> str | None:
    """The name under which the result of this call may be quantized; None if it is not an add, product or activation."""
    if not isinstance(output, Tensor) or not output.is_floating_point():
        return None
    name = COUNTED.get(getattr(function, "__name__", ""))
    if name in ("add", "mul") and is_scalar(args):
        return None
    return name


def is_scalar(args: tuple[Any, ...]) -> bool:
    """Whether one operand of an add or product is a single number."""
    return any(not isinstance(arg, Tensor) or arg.dim() == 0 for arg in args[:2])


def trace(model: nn.Module, run: Callable[[], object]) -> Trace:
    """Record the forward pass that `run` makes."""
    watch = _Watch(model)
    with watch.hooked(), watch, torch.no_grad():
        run()
    for index, step in enumerate(watch.steps):
        for source in step.sources:
            watch.steps[source].readers.append(index)
    return Trace(watch.steps, watch.names)


class _Watch(TorchFunctionMode):
    """Records calls; tensors are kept alive until the end, so that no id is reused."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.names = {id(module): name for name, module in model.named_modules()}
        self.steps: list[Step] = []
        self.made: dict[int, int] = {}  # id of a tensor to the step that made it
        self.alive: list[Tensor] = []
        self.scopes: list[tuple[nn.Module, Counter[str]]] = []
        self.inside = 0  # nesting depth inside elementary modules
        self.parameters = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if not self.inside and self.scopes:
            self._record(func, args, kwargs or {}, output)
        return output

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        results = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        name = getattr(func, "__name__", str(func))
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if not results or (name in SHAPING and all(any(result is leaf for leaf in inputs) for result in results)):
            return
        module, counts = self.scopes[-1]
        what = counted(func, args, output)
        if what is not None:
            counts[what] += 1
            what = f"{what}_{counts[what] - 1}"
        scalar = name in ("add", "mul", "sub", "div", "add_", "mul_", "neg", "truediv") and is_scalar(args)
        sources = self._sources(inputs)
        self._add(
            Step(
                kind=f"torch.{name}" if name in MODULE_KINDS else COUNTED.get(name, name),
                site=f"{self.names.get(id(module), '?')}:{what or name}",
                module=module,
                sources=sources,
                computed=any(self.steps[source].computed for source in sources),
                masked=what is not None and what.startswith("add") and any(map(self._is_mask, inputs)),
                empty=not any(result.numel() for result in results),
                scalar=scalar or name == "neg",
            ),
            results,
        )

    def _is_mask(self, tensor: Tensor) -> bool:
        made = self.made.get(id(tensor))
        given = made is None or not self.steps[made].computed or self.steps[made].masked
        return given and tensor.is_floating_point() and tensor.numel() > 0 and bool(tensor.min() <= HIDDEN_BELOW)

    def _sources(self, tensors: list[Tensor]) -> list[int]:
        return [self.made[id(tensor)] for tensor in tensors if id(tensor) in self.made]

    def _add(self, step: Step, results: list[Tensor]) -> None:
        self.steps.append(step)
        for result in results:
            self.made[id(result)] = len(self.steps) - 1
            self.alive.append(result)

    @contextlib.contextmanager
    def hooked(self) -> Iterator[None]:
        handles = []
        for module in self.model.modules():
            handles.append(module.register_forward_pre_hook(self._enter, with_kwargs=True))
            handles.append(module.register_forward_hook(self._leave, with_kwargs=True, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not self.scopes:
            for leaf in tree_leaves((args, kwargs)):
                if isinstance(leaf, Tensor) and leaf.is_floating_point():
                    self._add(Step("input", "the model's input", None, []), [leaf])
        if idea(module) is not None:
            self.inside += 1
        self.scopes.append((module, Counter()))

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        self.scopes.pop()
        if (kind := idea(module)) is None:
            return
        self.inside -= 1
        if self.inside:
            return
        results = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        several, empty = not isinstance(output, Tensor), not any(result.numel() for result in results)
        step = Step(kind, self.names[id(module)], module, self._sources(inputs), several=several, empty=empty)
        if kind == "tap":
            step.shape = tuple(results[0].shape)
        self._add(step, results)


def idea(module: nn.Module) -> str | None:
    """The kind of an elementary module, whose inner functions are not traced; None for any other module."""
    name, home = type(module).__name__, type(module).__module__
    if home.startswith("quietformer.attention"):
        return None if isinstance(module, AttentionCore) else "inside"
    if isinstance(module, PROJECTIONS):
        return "projection"
    if isinstance(module, nn.Embedding):
        return "embedding"
    if isinstance(module, (nn.Identity, Tap)):
        return "tap"
    if "Norm" in name and not any(isinstance(child, PROJECTIONS) for child in module.modules()):
        return "norm"
    function = home.startswith(("torch.nn.modules.activation", "transformers.activations"))
    if getattr(type(module), "acts_as_activation", False):
        return "activation"
    if function and not any(True for _ in module.parameters()):  # nn.MultiheadAttention has the same home
        return "activation"
    return None
