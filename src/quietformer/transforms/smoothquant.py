"""SmoothQuant-style migration: moves outliers of activations to the weights that read them.

For every group of projections that read the same tensor, channel j of the tensor is divided by s_j = max|X_j|^alpha /
max|W_j|^(1 - alpha) and the weights of that channel are multiplied by it: the same model with other ranges. If a norm feeds
only this group, the division is folded into the norm's weight; if attention does, into the projection of its values;
otherwise it is computed before each projection. Groups are found by tracing a forward pass, like the placement of quantizers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from quietformer.architectures.dataflow import Trace, trace
from quietformer.architectures.forward import Batch, in_eval_mode, run
from quietformer.architectures.layout import head_modules
from quietformer.attention.prefix import prefixes
from quietformer.errors import QuietformerError
from quietformer.transforms.channel_ranges import SAMPLED, ReadInput, read_inputs, smoothing
from quietformer.transforms.equivalence import first_output, same_up_to_rounding
from quietformer.transforms.preconditions import refuse_quantized

MIGRATION = "migration"
"""The name of the buffer by which the input of a projection is divided."""

VALUES = {"scaled_dot_product_attention": 2, "matmul": 1, "bmm": 1}
"""Functions by which attention is computed, and which of their inputs the values are."""

Exponent = Callable[[Tensor, Tensor, list[Tensor]], float]
"""Chooses alpha for one group: from a sample of its input, max|X_j|, and the weights that read it, channels first."""


@dataclass
class Migration:
    """The result: how many groups were folded into what is before, how many are divided explicitly, and which were skipped."""

    alphas: list[float] = field(default_factory=list)
    folded: int = 0
    divided: int = 0
    left: dict[str, str] = field(
        default_factory=dict
    )  # the first projection of a skipped group, and why it was skipped


@dataclass
class LinearGroup:
    """Projections that read the same tensor."""

    projections: list[nn.Module]
    names: list[str]
    norm: nn.Module | None  # the norm that feeds only these projections
    values: nn.Linear | None  # the projection of the values whose attention feeds only these projections
    reads_norm: bool = False  # whether they read a norm, which may feed others too


NOTHING_BEFORE = "nothing before it takes the division over"


def migrate_(
    model: PreTrainedModel,
    batches: Iterable[Batch],
    alpha: float | Exponent = 0.5,
    *,
    only_folded: bool = False,
    which: Callable[[LinearGroup], bool] = lambda group: True,
) -> Migration:
    """Migrate in place, with ranges from the batches and one exponent, or a function that chooses one for each group.

    Quantize afterwards; do not save, since the config does not record it. With `only_folded` nothing is divided explicitly, and
    the result is an ordinary model: groups with nothing before them that takes the division over are skipped. `which` tells the
    groups to migrate.
    """
    if isinstance(alpha, float) and not 0.0 <= alpha <= 1.0:
        raise QuietformerError(f"alpha must be between 0 (everything stays in the activations) and 1, got {alpha:g}")
    refuse_quantized(model, "migrate")
    if any(hasattr(module, MIGRATION) for module in model.modules()):
        raise QuietformerError(f"{type(model).__name__} has been migrated already; start from the original")
    batches = list(batches)
    if not batches:
        raise QuietformerError("there are no batches to migrate with; pass some text or images")
    few = {name: tensor[:2] for name, tensor in batches[0].items()}
    with in_eval_mode(model), torch.no_grad():
        before = first_output(model, few)
        groups, done = list(filter(which, find_groups(model, few))), Migration()
        every = [module for group in groups for module in group.projections]
        inputs = read_inputs(model, every, batches, rows=rows_for(alpha))
        migrate_groups_(model, groups, inputs, alpha, done, only_folded=only_folded)
        if not same_up_to_rounding(before, first_output(model, few)):
            # Migration changes only ranges, so this model uses its modules in a way that the trace does not show.
            raise QuietformerError(
                f"{type(model).__name__} gives different outputs after migration, so it cannot be migrated; reload the original"
            )
    return done


def rows_for(alpha: float | Exponent) -> int:
    """How many rows of every input are to be kept for choosing exponents."""
    return 0 if isinstance(alpha, float) else SAMPLED


def migrate_groups_(
    part: nn.Module,
    groups: Iterable[LinearGroup],
    inputs: dict[int, ReadInput],
    alpha: float | Exponent,
    done: Migration,
    *,
    only_folded: bool = False,
) -> None:
    """Migrate groups of a model or of one of its parts, by what their projections read; `done` is told."""
    users = Counter(id(parameter) for module in part.modules() for parameter in module._parameters.values())
    for group in groups:
        if any(users[id(module._parameters["weight"])] > 1 for module in group.projections):
            done.left[group.names[0]] = "its weight is tied to another module's"
        elif not all(id(module) in inputs for module in group.projections):
            done.left[group.names[0]] = "not used on these batches"
        elif only_folded and group.norm is None and group.values is None:
            done.left[group.names[0]] = NOTHING_BEFORE
        else:
            found = torch.stack([inputs[id(module)].largest for module in group.projections]).amax(0)
            weights = [_by_channel(module) for module in group.projections]
            first = inputs[id(group.projections[0])]
            chosen = alpha if isinstance(alpha, float) else alpha(first.sample, found, weights)
            if _migrate_group_(group, found, chosen, users, only_folded=only_folded):
                done.folded += 1
            elif only_folded:
                done.left[group.names[0]] = NOTHING_BEFORE
                continue
            else:
                done.divided += 1
            done.alphas.append(chosen)


def find_groups(model: PreTrainedModel, example: Batch) -> list[LinearGroup]:
    """The groups of a model, from one forward pass on a small example."""
    return _groups(model, trace(model, lambda: run(model, example)))


def _groups(model: PreTrainedModel, seen: Trace) -> list[LinearGroup]:
    """Projections grouped by the tensors they read; a projection that is called several times joins the groups it reads."""
    head = head_modules(model)
    sources: dict[str, set[int]] = {}
    modules: dict[str, nn.Module] = {}
    for step in seen.steps:
        # Convolutions read pixels or audio, whose channels have no outliers to move.
        if step.kind == "projection" and isinstance(step.module, (nn.Linear, Conv1D)) and id(step.module) not in head:
            modules[step.site] = step.module
            sources.setdefault(step.site, set()).update(step.sources)
    joined: list[tuple[list[str], set[int]]] = []
    for name, read in sources.items():
        touching = [group for group in joined if group[1] & read]
        joined = [group for group in joined if not group[1] & read]
        joined.append(([*(n for names, _ in touching for n in names), name], read.union(*(r for _, r in touching))))
    constant = any(True for _ in prefixes(model))  # values of a prefix would have to follow what is folded into values
    groups = [
        LinearGroup(
            [modules[n] for n in names], names, _only_norm(seen, names, read),
            None if constant else _only_values(seen, names, read), any(seen.steps[index].kind == "norm" for index in read),
        )
        for names, read in joined
    ]  # fmt: skip
    # What is folded into values changes weights that other groups are measured by.
    return sorted(groups, key=lambda group: group.values is None)


def _only_norm(seen: Trace, names: list[str], read: set[int]) -> nn.Module | None:
    """The norm that only these projections read and that is called once; None if there is none."""
    if len(read) != 1:
        return None
    step = seen.steps[next(iter(read))]
    if step.kind != "norm" or sum(other.module is step.module for other in seen.steps) > 1:
        return None
    return step.module if all(seen.steps[reader].site in names for reader in step.readers) else None


def _only_values(seen: Trace, names: list[str], read: set[int]) -> nn.Linear | None:
    """The projection whose channels, weighted by attention, are the channels that only these projections read."""
    if len(read) != 1:
        return None
    found = list(seen.origins(next(iter(read))))
    if len(found) != 1 or any(reader.site not in names for reader in seen.readers(found[0][0])):
        return None
    attention = found[0][1]
    if attention.kind in VALUES and len(attention.sources) > VALUES[attention.kind]:
        values = list(seen.origins(attention.sources[VALUES[attention.kind]]))
    else:
        owner, _, tap = attention.site.rpartition(".")
        taps = [index for index, step in enumerate(seen.steps) if tap == "context" and step.site == f"{owner}.value"]
        values = [origin for index in taps for source in seen.steps[index].sources for origin in seen.origins(source)]
    if len(values) != 1 or len(list(seen.readers(values[0][0]))) != 1:
        return None
    module = values[0][1].module
    called = sum(step.module is module for step in seen.steps)
    return module if isinstance(module, nn.Linear) and called == 1 else None


def _migrate_group_(
    group: LinearGroup, largest: Tensor, alpha: float, users: Counter[int], *, only_folded: bool
) -> bool:
    """Rescale one group; returns whether the division was folded into what is before it."""
    weights = torch.stack([_by_channel(module).abs().amax(1) for module in group.projections]).amax(0)
    like = _by_channel(group.projections[0])
    # Divisor and factor must be exactly equal, so the scale is rounded once, before both.
    scale = smoothing(largest, weights, alpha).to(like)
    folded = group.norm is not None and _fold_(group.norm, scale, users)
    folded = folded or (group.values is not None and _fold_into_values_(group.values, scale, users))
    if only_folded and not folded:
        return False
    for module in group.projections:
        _by_channel(module).mul_(scale[:, None])
        if not folded:
            module.register_buffer(MIGRATION, scale, persistent=False)
            module.register_forward_pre_hook(_divide)
    return folded


def _divide(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    # A torch function, so that the trace sees that the input of the projection is not quantized yet.
    return (torch.div(args[0], getattr(module, MIGRATION)), *args[1:])


def _fold_(norm: nn.Module, scale: Tensor, users: Counter[int]) -> bool:
    """Divide the norm's parameters; undone where its output does not follow, as for norms that add 1 to their weight."""
    parameters = [parameter for parameter in norm._parameters.values() if parameter is not None]
    if not parameters or any(p.shape != scale.shape or users[id(p)] > 1 for p in parameters):
        return False
    probe = torch.randn(64, len(scale), generator=torch.Generator().manual_seed(0)).to(scale)[None]
    kept = [parameter.clone() for parameter in parameters]
    before = norm(probe)
    for parameter in parameters:
        parameter.div_(scale)
    # Per channel: a large channel must not hide an error in a small one.
    error, largest = (norm(probe) * scale - before).abs().amax((0, 1)), before.abs().amax((0, 1))
    if bool((error <= 8 * torch.finfo(before.dtype).eps * largest).all()):
        return True
    for parameter, old in zip(parameters, kept, strict=True):
        parameter.copy_(old)
    return False


def _fold_into_values_(values: nn.Linear, scale: Tensor, users: Counter[int]) -> bool:
    """Divide the channels of the values; not where several heads share one (grouped queries)."""
    parameters = [parameter for parameter in values._parameters.values() if parameter is not None]
    if any(len(parameter) != len(scale) or users[id(parameter)] > 1 for parameter in parameters):
        return False
    for parameter in parameters:
        parameter.div_(scale.view(-1, *[1] * (parameter.dim() - 1)))
    return True


def _by_channel(projection: nn.Module) -> Tensor:
    """A view of the weight with its input channels first."""
    weight = projection._parameters["weight"]
    assert weight is not None
    return weight if isinstance(projection, Conv1D) else weight.T
