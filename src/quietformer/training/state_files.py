"""Optimizer, scheduler and random states as safetensors: nothing of a checkpoint is ever unpickled."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from quietformer.errors import CheckpointError, in_one_line

TREE = "tree"
"""The key of the file's metadata under which everything that is not a tensor lies."""


def write_tree(path: Path, tree: Any) -> None:
    """Nested dicts, lists, tuples, arrays, tensors and plain values, exactly as they are."""
    tensors: dict[str, Tensor] = {}
    skeleton = _flatten(tree, tensors)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(tensors or {"": torch.zeros(0)}, path, metadata={TREE: json.dumps(skeleton)})


def read_tree(path: Path) -> Any:
    """What `write_tree` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            skeleton = json.loads((file.metadata() or {})[TREE])
            return _restore(skeleton, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {in_one_line(error, 200)}") from None


def _flatten(value: Any, tensors: dict[str, Tensor]) -> Any:
    """A JSON form: plain values as they are, everything else as [what it is, content]."""
    if isinstance(value, np.ndarray):
        return ["array", _flatten(torch.from_numpy(np.ascontiguousarray(value)), tensors)]
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value
        return ["tensor", name]
    if isinstance(value, dict):
        return ["dict", [[_flatten(key, tensors), _flatten(item, tensors)] for key, item in value.items()]]
    if isinstance(value, (list, tuple)):
        return ["tuple" if isinstance(value, tuple) else "list", [_flatten(item, tensors) for item in value]]
    if isinstance(value, (np.integer, np.floating, np.bool_)):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"a state holds {type(value).__name__}, which no file of ours can")


def _restore(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, list):
        return value
    what, content = value
    if what == "tensor":
        return tensors[content]
    if what == "array":
        return _restore(content, tensors).numpy()
    if what == "dict":
        return {_restore(key, tensors): _restore(item, tensors) for key, item in content}
    items = [_restore(item, tensors) for item in content]
    return tuple(items) if what == "tuple" else items


def random_states() -> dict[str, Any]:
    """Every generator a training step may draw from."""
    states: dict[str, Any] = {
        "python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.random.get_rng_state(),
    }  # fmt: skip
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.random.get_rng_state_all()
    return states


def set_random_states(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.random.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.random.set_rng_state_all(states["cuda"][: torch.cuda.device_count()])
