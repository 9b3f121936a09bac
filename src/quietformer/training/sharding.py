"""Models sharded over processes by FSDP: their states gathered for files, and given out again."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor


def gathered(tree: Any, *, keep: bool) -> Any:
    """The same tree with whole tensors in place of shards. All processes must call it; those that do not keep get None."""
    if isinstance(tree, DTensor):
        whole = tree.full_tensor()
        return whole.detach().cpu() if keep else None
    if isinstance(tree, Tensor):
        return tree if keep else None
    if isinstance(tree, dict):
        return {key: gathered(value, keep=keep) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(gathered(value, keep=keep) for value in tree)
    return tree


def sharded_optimizer_state(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """A whole optimizer state cut up as the optimizer's parameters are."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def cut(value: Any, parameter: Tensor) -> Any:
        if isinstance(value, Tensor) and isinstance(parameter, DTensor) and value.shape == parameter.shape:
            return distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)
        return value

    cut_up = {
        number: {name: cut(value, parameters[number]) for name, value in states.items()}
        for number, states in state["state"].items()
    }
    return {**state, "state": cut_up}


@contextlib.contextmanager
def embeddings_in_root(model: nn.Module) -> Iterator[None]:
    """Keep Accelerate from sharding embeddings and head as a group of their own where more than their weight is shared.

    BERT's head has its bias in two places, of which that group would see one; torch refuses to shard such a parameter.
    """
    embeddings = model.get_input_embeddings()  # type: ignore[operator]
    own = {id(parameter) for parameter in embeddings.parameters()}
    places = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    if not any(count > 1 and parameter not in own for parameter, count in places.items()):
        yield
        return
    hidden = ("get_input_embeddings", "get_output_embeddings")
    for name in hidden:
        model.__dict__[name] = lambda: None
    try:
        yield
    finally:
        for name in hidden:
            model.__dict__.pop(name, None)
