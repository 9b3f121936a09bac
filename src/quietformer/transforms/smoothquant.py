"""SmoothQuant-style migration: outliers of activations are handed to the weights that read them, as a baseline.

Of every group of projections that read one tensor, input channel j of it is divided by s_j = max|X_j|^alpha /
max|W_j|^(1 - alpha), and what the weights read of that channel is multiplied by it: the same model with other ranges.
Where a norm gives the tensor to nobody else, the norm's weight takes the division; elsewhere it stands before each
projection. Groups are found by watching a forward pass, as the placement of quantizers is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from quietformer.architectures.forward import Batch, in_eval_mode, run
from quietformer.architectures.layout import head_modules
from quietformer.architectures.trace import Trace, trace
from quietformer.errors import QuietformerError
from quietformer.transforms.channel_ranges import largest_inputs, smoothing
from quietformer.transforms.equivalence import first_output, same_up_to_rounding
from quietformer.transforms.preconditions import refuse_quantized

MIGRATION = "migration"
"""The buffer of a projection that its input is divided by."""


@dataclass
class Migration:
    """What was done: groups whose division went into a norm, groups divided explicitly, and groups that were left."""

    alpha: float
    folded: int = 0
    divided: int = 0
    left: dict[str, str] = field(default_factory=dict)  # the first projection of a group, and why it was left


@dataclass
class _Group:
    """Projections that read one tensor."""

    projections: list[nn.Module]
    names: list[str]
    norm: nn.Module | None  # that gives the tensor to these and to nothing else


def migrate_(model: PreTrainedModel, batches: Iterable[Batch], alpha: float = 0.5) -> Migration:
    """Migrate in place, from ranges on the batches; to be quantized afterwards, not saved: nothing of it is in the config."""
    if not 0.0 <= alpha <= 1.0:
        raise QuietformerError(f"alpha is {alpha:g}; migration takes a number from 0, all left with activations, to 1")
    refuse_quantized(model, "migrate")
    if any(hasattr(module, MIGRATION) for module in model.modules()):
        raise QuietformerError(f"{type(model).__name__} has been migrated already; start from the original")
    batches = list(batches)
    if not batches:
        raise QuietformerError("there are no batches to migrate by; give some text or images")
    few = {name: tensor[:2] for name, tensor in batches[0].items()}
    with in_eval_mode(model), torch.no_grad():
        before = first_output(model, few)
        groups, done = _groups(model, trace(model, lambda: run(model, few))), Migration(alpha)
        users = Counter(id(parameter) for module in model.modules() for parameter in module._parameters.values())
        largest = largest_inputs(model, [module for group in groups for module in group.projections], batches)
        for group in groups:
            if any(users[id(module._parameters["weight"])] > 1 for module in group.projections):
                done.left[group.names[0]] = "its weight is tied to another module's"
            elif not all(id(module) in largest for module in group.projections):
                done.left[group.names[0]] = "not used on these batches"
            elif _migrate_group_(group, [largest[id(module)] for module in group.projections], alpha, users):
                done.folded += 1
            else:
                done.divided += 1
        if not same_up_to_rounding(before, first_output(model, few)):
            # Migration changes ranges and nothing else; this model uses its parts in a way no trace shows.
            raise QuietformerError(
                f"{type(model).__name__} computes something else after migration, so it cannot be migrated; go on from a copy"
            )
    return done


def _groups(model: PreTrainedModel, seen: Trace) -> list[_Group]:
    """Projections joined by what they read; one that is called several times joins all that it reads."""
    head = head_modules(model)
    sources: dict[str, set[int]] = {}
    modules: dict[str, nn.Module] = {}
    for step in seen.steps:
        # Convolutions read pixels or sound, whose channels have no outliers to hand on.
        if step.kind == "projection" and isinstance(step.module, (nn.Linear, Conv1D)) and id(step.module) not in head:
            modules[step.site] = step.module
            sources.setdefault(step.site, set()).update(step.sources)
    joined: list[tuple[list[str], set[int]]] = []
    for name, read in sources.items():
        touching = [group for group in joined if group[1] & read]
        joined = [group for group in joined if not group[1] & read]
        joined.append(([*(n for names, _ in touching for n in names), name], read.union(*(r for _, r in touching))))
    return [_Group([modules[n] for n in names], names, _only_norm(seen, names, read)) for names, read in joined]


def _only_norm(seen: Trace, names: list[str], read: set[int]) -> nn.Module | None:
    """The norm these projections and nothing else read, which has no other call."""
    if len(read) != 1:
        return None
    step = seen.steps[next(iter(read))]
    if step.kind != "norm" or sum(other.module is step.module for other in seen.steps) > 1:
        return None
    return step.module if all(seen.steps[reader].site in names for reader in step.readers) else None


def _migrate_group_(group: _Group, largest: list[Tensor], alpha: float, users: Counter[int]) -> bool:
    """Whether the division went into the norm."""
    weights = torch.stack([_by_channel(module).abs().amax(1) for module in group.projections]).amax(0)
    like = _by_channel(group.projections[0])
    # What is divided by must be exactly what is multiplied by, so it is rounded once, before both.
    scale = smoothing(torch.stack(largest).amax(0), weights, alpha).to(like)
    folded = group.norm is not None and _fold_(group.norm, scale, users)
    for module in group.projections:
        _by_channel(module).mul_(scale[:, None])
        if not folded:
            module.register_buffer(MIGRATION, scale, persistent=False)
            module.register_forward_pre_hook(_divide)
    return folded


def _divide(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    # A function of torch, so that the trace sees that what the projection reads is on no grid yet.
    return (torch.div(args[0], getattr(module, MIGRATION)), *args[1:])


def _fold_(norm: nn.Module, scale: Tensor, users: Counter[int]) -> bool:
    """Divide the norm's parameters; undone where its output does not follow, such as for norms that add 1 to their weight."""
    parameters = [parameter for parameter in norm._parameters.values() if parameter is not None]
    if not parameters or any(p.shape != scale.shape or users[id(p)] > 1 for p in parameters):
        return False
    probe = torch.randn(64, len(scale), generator=torch.Generator().manual_seed(0)).to(scale)[None]
    kept = [parameter.clone() for parameter in parameters]
    before = norm(probe)
    for parameter in parameters:
        parameter.div_(scale)
    # Channel by channel: a large one must not hide that a small one went wrong.
    error, largest = (norm(probe) * scale - before).abs().amax((0, 1)), before.abs().amax((0, 1))
    if bool((error <= 8 * torch.finfo(before.dtype).eps * largest).all()):
        return True
    for parameter, old in zip(parameters, kept, strict=True):
        parameter.copy_(old)
    return False


def _by_channel(projection: nn.Module) -> Tensor:
    """A view of the weight with its input channels first."""
    weight = projection._parameters["weight"]
    assert weight is not None
    return weight if isinstance(projection, Conv1D) else weight.T
