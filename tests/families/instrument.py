"""Give a model telling weights, and watch what it hands to the attention interface."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_utils import AttentionInterface

WEIGHT_STD = 0.2
GATE_VALUE = 0.5


@dataclass
class AttentionCall:
    """What one call of the attention interface looked like."""

    module: str
    query: tuple[int, ...]
    key: tuple[int, ...]
    value: tuple[int, ...]
    mask: tuple[int, ...] | None
    kwargs: dict[str, str]


# ------------------------------------------------------------------------------------------------------ weights


@contextlib.contextmanager
def visible_uninitialised_memory() -> Iterator[None]:
    """Fill torch.empty with NaN, so that parameters nobody initialises are recognisable instead of random."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _fan_in(owner: nn.Module, parameter: torch.Tensor) -> int:
    if isinstance(owner, nn.modules.conv._ConvNd):
        return math.prod(parameter.shape[1:])
    return parameter.shape[-1]


def randomise(model: nn.Module, seed: int) -> None:
    """Weights large enough for attention to be far from uniform, everything finite and reproducible."""
    generator = torch.Generator().manual_seed(seed)
    done: set[int] = set()
    with torch.no_grad():
        for owner in model.modules():
            is_norm = "norm" in type(owner).__name__.lower()
            for name, tensor in owner.named_parameters(recurse=False):
                if id(tensor) in done or not tensor.is_floating_point():
                    continue
                done.add(id(tensor))
                if is_norm and torch.isfinite(tensor).all():
                    continue
                if tensor.dim() >= 2 and not is_norm:
                    std = min(WEIGHT_STD, 1.2 / math.sqrt(max(1, _fan_in(owner, tensor))))
                    tensor.copy_(torch.randn(tensor.shape, generator=generator) * std)
                elif not torch.isfinite(tensor).all():
                    # Uninitialised: a scale if its name says so, otherwise an offset.
                    scale = (is_norm and name == "weight") or re.search(r"scale|gamma|gate|norm", name)
                    tensor.fill_(1.0 if scale else 0.0)
                elif "bias" not in name and name not in ("A_log", "D") and tensor.abs().max() < 0.1:
                    # Zero or nearly zero scales (layer-scale, gates) would hide attention from the output.
                    tensor.fill_(GATE_VALUE)
            for buffer in owner.buffers(recurse=False):
                if buffer.is_floating_point() and torch.isnan(buffer).any():
                    buffer.zero_()


# ------------------------------------------------------------------------------------------- watching attention


@contextlib.contextmanager
def watch_attention(calls: list[AttentionCall] | None = None, *, silence: bool = False) -> Iterator[None]:
    """Record every call of the attention interface; with `silence`, replace the attention output by zeros."""
    original = AttentionInterface.get_interface

    def shape(value: Any) -> tuple[int, ...] | None:
        return tuple(value.shape) if isinstance(value, torch.Tensor) else None

    def get_interface(self: AttentionInterface, implementation: str, default: Callable[..., Any]) -> Callable[..., Any]:
        function = original(self, implementation, default)

        def watched(
            module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any
        ) -> Any:
            if calls is not None:
                mask = kwargs.get("attention_mask", args[0] if args else None)
                owner = type(module)
                calls.append(
                    AttentionCall(
                        f"{owner.__module__.removeprefix('transformers.models.')}.{owner.__name__}",
                        shape(query) or (),
                        shape(key) or (),
                        shape(value) or (),
                        shape(mask),
                        {
                            name: f"tensor{tuple(item.shape)}" if isinstance(item, torch.Tensor) else repr(item)[:60]
                            for name, item in kwargs.items()
                            if name != "attention_mask" and item is not None
                        },
                    )
                )
            result = function(module, query, key, value, *args, **kwargs)
            if silence:
                result = (torch.zeros_like(result[0]), *result[1:])
            return result

        return watched

    AttentionInterface.get_interface = get_interface  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        AttentionInterface.get_interface = original  # type: ignore[method-assign]


def tensors_of(output: Any) -> list[torch.Tensor]:
    """All floating-point tensors of a model output, in a fixed order; caches are skipped."""
    if isinstance(output, torch.Tensor):
        return [output] if output.is_floating_point() or output.is_complex() else []
    if isinstance(output, dict):
        return [
            tensor
            for name, value in output.items()
            if "past_key_values" not in str(name)
            for tensor in tensors_of(value)
        ]
    if isinstance(output, (list, tuple)):
        return [tensor for value in output for tensor in tensors_of(value)]
    return []


def largest_change(before: list[torch.Tensor], after: list[torch.Tensor]) -> float:
    if len(before) != len(after) or any(a.shape != b.shape for a, b in zip(before, after, strict=True)):
        return math.inf
    return max((float((a - b).abs().max()) for a, b in zip(before, after, strict=True) if a.numel()), default=0.0)


def run(model: PreTrainedModel, inputs: dict[str, Any]) -> list[torch.Tensor]:
    with torch.no_grad():
        return tensors_of(model(**inputs))
