"""Finding the layers of a model that attend through transformers' attention interface, and their sizes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import CodeType
from typing import Any

import torch
from torch import nn

from quietformer.config.attention import HeadGeometry
from quietformer.errors import UnsupportedModelError

CORE = "quiet"
"""The attribute name of the core in its layer; a state dict has keys like `...attention.self.quiet.gating.weight`."""

INTERFACE = "ALL_ATTENTION_FUNCTIONS"

HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "num_q_heads", "heads", "n_head")

HEAD_WIDTHS = ("v_head_dim", "head_dim", "attention_head_size", "head_size", "key_value_proj_dim", "head_channels")

INPUT_PROJECTIONS = (
    "q_proj", "query", "q", "q_a_proj", "q_lin", "linear_q", "qkv", "qkv_proj", "Wqkv", "Wq", "wq", "to_q", "c_attn",
    "q_attn", "query_key_value", "in_proj", "query_proj", "q_content_proj",
)  # fmt: skip

OUTPUT_PROJECTIONS = (
    "o_proj", "out_proj", "o", "out_lin", "linear_out", "c_proj", "proj", "dense", "Wo", "wo", "to_out",
    "projection_layer",
)  # fmt: skip


@dataclass(frozen=True)
class AttentionLayer:
    """One attention module of a model."""

    name: str
    module: nn.Module
    geometry: HeadGeometry

    @property
    def input_name(self) -> str:
        """The name of the first argument of the layer's forward, from which the queries are computed."""
        parameters = list(inspect.signature(inspect.unwrap(type(self.module).forward)).parameters)
        return parameters[1] if len(parameters) > 1 else "hidden_states"


def find_layers(model: nn.Module) -> list[AttentionLayer]:
    """Every layer of the model that uses transformers' attention interface."""
    return [
        AttentionLayer(name, module, read_geometry(name, module))
        for name, module in model.named_modules()
        if interface_caller(type(module)) is not None
    ]


ATTENDING = {"softmax", "scaled_dot_product_attention", "flash_attn_func", "flash_attn_varlen_func"}
"""Names in the code of a forward method that show that the module computes attention itself."""


def find_other_attention(model: nn.Module) -> list[str]:
    """Layers that compute attention without the interface, so that it cannot be replaced."""
    own = []
    for name, module in model.named_modules():
        cls = type(module)
        if interface_caller(cls) is not None or CORE in module._modules:
            continue
        names = _names(getattr(cls, "forward", None))
        named_so = "Attention" in cls.__name__ and bool(names & ATTENDING)
        if isinstance(module, nn.MultiheadAttention) or named_so or "scaled_dot_product_attention" in names:
            own.append(f"{name} ({cls.__name__})")
    return own


def interface_caller(cls: type[nn.Module]) -> Callable[..., Any] | None:
    """The method of this class that looks up the attention interface, if any."""
    for name in ("forward", *sorted(vars(cls))):
        function = getattr(cls, name, None)
        if inspect.isfunction(function) and INTERFACE in _names(function):
            unwrapped: Callable[..., Any] = inspect.unwrap(function)
            return unwrapped
    return None


def eager_function(cls: type[nn.Module]) -> Callable[..., Any] | None:
    """The eager attention function of this class, which defines what its attention computes."""
    caller = interface_caller(cls)
    if caller is None:
        return None
    named = [caller.__globals__.get(name) for name in sorted(_names(caller)) if "eager" in name]
    functions = [function for function in named if callable(function)]
    return functions[0] if len(functions) == 1 else None


def read_geometry(name: str, module: nn.Module) -> HeadGeometry:
    """The head geometry, read from the module's attributes and projections; `AttentionCore` checks it on every call."""
    config = getattr(module, "config", None)
    output = _first_child(module, OUTPUT_PROJECTIONS)
    width = _first_int(module, HEAD_WIDTHS)
    d_out = None if output is None else _in_features(output)
    n_heads = _first_int(module, HEAD_COUNTS)
    if n_heads is None and d_out and width and d_out % width == 0:
        n_heads = d_out // width
    if n_heads is None:
        n_heads = _first_int(config, HEAD_COUNTS)
    if n_heads is None:
        raise UnsupportedModelError(f"{name} ({type(module).__name__}) does not say how many heads it has")
    projection = _first_child(module, INPUT_PROJECTIONS)
    d_model = _in_features(projection) if projection is not None else _first_int(config, ("hidden_size", "d_model"))
    if d_model is None:
        raise UnsupportedModelError(f"{name} ({type(module).__name__}) does not say the width of its input")
    d_value = d_out // n_heads if d_out and d_out % n_heads == 0 else width
    return HeadGeometry(n_heads=n_heads, d_model=d_model, d_value=d_value)


def check_eager_parity(layer: AttentionLayer, compute: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Refuse a layer whose own eager attention is not what the core computes with plain softmax.

    Families differ (sinks, soft caps, biases, ignored masks); comparing on random inputs is safer than a list of names.
    """
    where = f"{layer.name} ({type(layer.module).__name__})"
    eager = eager_function(type(layer.module))
    if eager is None:
        raise UnsupportedModelError(
            f"{where} has no eager attention to compare with, so a replacement cannot be verified"
        )
    known = {"module", "scaling", "dropout", "softcap", "position_bias", "sliding_window", "kwargs"}
    positional = list(inspect.signature(eager).parameters)
    if unknown := [name for name in positional if name not in known and positional.index(name) > 4]:
        raise UnsupportedModelError(
            f"the attention of {where} takes {', '.join(unknown)}, which Quietformer's attention does not support"
        )
    query, key, value, mask = _random_inputs(layer)
    was_training = layer.module.training
    try:
        layer.module.training = False
        with torch.no_grad():
            theirs, _ = eager(layer.module, query, key, value, mask, scaling=query.shape[-1] ** -0.5, dropout=0.0)
            ours, _ = compute(query, key, value, mask)
    except (RuntimeError, TypeError, AttributeError, NotImplementedError) as error:
        raise UnsupportedModelError(
            f"{where}: its eager attention could not be compared with Quietformer's: {error}"
        ) from error
    finally:
        layer.module.training = was_training
    if ours.shape != theirs.shape or not torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6):
        raise UnsupportedModelError(
            f"{where} computes more than softmax attention (its own sinks, gates or an ignored mask), "
            "so replacing its softmax would change the model"
        )


def _random_inputs(layer: AttentionLayer) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device="cpu", dtype=torch.float32)

    heads = layer.geometry.n_heads
    groups = getattr(layer.module, "num_key_value_groups", 1)
    groups = groups if isinstance(groups, int) and groups > 0 and heads % groups == 0 else 1
    width = _first_int(layer.module, ("head_dim", "attention_head_size", "head_size")) or 8
    mask = torch.zeros(1, 1, 3, 5, device="cpu", dtype=torch.float32)
    mask[..., 0, 3:] = torch.finfo(torch.float32).min
    mask[..., 1, 0] = -1.5  # a bias, not a mask
    return draw(1, heads, 3, width), draw(1, heads // groups, 5, width), draw(1, heads // groups, 5, width), mask


@cache
def _names(function: Callable[..., Any] | None) -> frozenset[str]:
    """Every global and attribute name a function's code mentions."""
    code = getattr(inspect.unwrap(function), "__code__", None) if function is not None else None
    return frozenset(name for part in _codes(code) for name in part.co_names) if code is not None else frozenset()


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _first_int(owner: object, names: tuple[str, ...]) -> int | None:
    values = (getattr(owner, name, None) for name in names)
    return next(
        (value for value in values if isinstance(value, int) and not isinstance(value, bool) and value > 0), None
    )


def _first_child(module: nn.Module, names: tuple[str, ...]) -> nn.Module | None:
    children = dict(module.named_children())
    return next((children[name] for name in names if name in children and _in_features(children[name])), None)


def _in_features(projection: nn.Module) -> int | None:
    features = getattr(projection, "in_features", None) or getattr(projection, "nx", None)
    if isinstance(features, int):
        return features
    # to_out is a Sequential in some models
    first = next(projection.children(), None)
    return None if first is None else _in_features(first)
