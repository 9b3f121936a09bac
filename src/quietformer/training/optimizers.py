"""The parameters of a model by learning rate and weight decay, and Muon for its matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from quietformer.architectures.layout import find_blocks
from quietformer.attention.find_layers import CORE
from quietformer.config.optimization import MUON, OptimizerRecipe
from quietformer.errors import QuietformerError

Group = dict[str, Any]


@dataclass(frozen=True)
class Rates:
    """What decides the group of a parameter."""

    recipe: OptimizerRecipe
    decayed: frozenset[str]  # names of the parameters that weight decay applies to
    matrices: frozenset[int]  # ids of the parameters that Muon takes


def own_groups(recipe: OptimizerRecipe) -> bool:
    """Whether the recipe asks for more than the Trainer's two groups, with weight decay and without."""
    return (recipe.gate_factor, recipe.norm_factor) != (1.0, 1.0) or recipe.name == MUON


def parameter_groups(model: nn.Module, rates: Rates) -> list[Group]:
    """The trained parameters by learning rate, weight decay and whether Muon takes them.

    The first group's learning rate is the one that is shown: that of most of the model.
    """
    recipe = rates.recipe
    norms = {
        f"{prefix}.{name}"
        for prefix, module in model.named_modules()
        if is_norm(module)
        for name, _ in module.named_parameters(recurse=False)
    }
    groups: dict[tuple[bool, float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            gate = f".{CORE}." in f".{name}"
            factor = recipe.gate_factor if gate else recipe.norm_factor if name in norms else 1.0
            decay = recipe.weight_decay if name in rates.decayed else 0.0
            place = (id(parameter) in rates.matrices, recipe.learning_rate * factor, decay)
            groups.setdefault(place, []).append(parameter)
    ordered = sorted(groups.items(), key=lambda group: group[0][1] != recipe.learning_rate)
    return [
        {"params": some, "lr": rate, "weight_decay": decay} | ({MUON: matrix} if recipe.name == MUON else {})
        for (matrix, rate, decay), some in ordered
    ]


def is_norm(module: nn.Module) -> bool:
    """LayerNorm, RMSNorm and their kin."""
    return "norm" in type(module).__name__.lower()


def block_matrices(model: nn.Module) -> frozenset[int]:
    """The weights of the linear layers inside the blocks, by id: not the embeddings, the head or the gates."""
    return frozenset(
        id(module.weight)
        for block in find_blocks(model)
        for name, module in block.module.named_modules()
        if isinstance(module, (nn.Linear, Conv1D)) and CORE not in name.split(".")
    )


class MuonAndAdamW(torch.optim.Optimizer):
    """Muon for the groups marked as matrices and AdamW for the others, with one state and one list of groups.

    Muon's updates are scaled to the size of AdamW's (0.2 sqrt of the larger dimension), so one learning rate serves both.
    """

    def __init__(self, groups: Iterable[Group], make_adamw: Callable[[list[Group]], torch.optim.Optimizer]) -> None:
        known = list(groups)
        matrices, others = ([group for group in known if group[MUON] is wanted] for wanted in (True, False))
        if not matrices:
            raise QuietformerError("muon found no matrices in the blocks of this model; use adamw_torch_fused")
        self._muon = torch.optim.Muon(matrices, adjust_lr_fn="match_rms_adamw")
        self._adamw = make_adamw(others)
        super().__init__([*self._muon.param_groups, *self._adamw.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Both work on this optimizer's state and groups: schedules, checkpoints and the Trainer see only these."""
        for part, wanted in ((self._muon, True), (self._adamw, False)):
            part.state = self.state
            part.param_groups = [group for group in self.param_groups if group[MUON] is wanted]

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        self._share()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._muon.step()  # type: ignore[no-untyped-call]
        self._adamw.step()
        return loss


def tie_gains_(model: nn.Module) -> Callable[[], None]:
    """Keep the gains of every norm equal to one another, as the one scale of a single-scale norm; call the result to stop.

    All entries of a norm's weight start equal and get the same gradient, the one that a single scale would get: the sum
    of theirs, over sqrt(d) so that the gradient's norm is that of the single scale too. The model stays an ordinary one.
    """

    def same(grad: torch.Tensor) -> torch.Tensor:
        return (grad.sum() / math.sqrt(grad.numel())).expand_as(grad)

    gains = [getattr(module, "weight", None) for module in model.modules() if is_norm(module)]
    handles = [gain.register_hook(same) for gain in gains if isinstance(gain, nn.Parameter)]  # type: ignore[no-untyped-call]

    def stop() -> None:
        for handle in handles:
            handle.remove()

    return stop
