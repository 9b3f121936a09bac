"""Modules with a gain for each feature, which let the tensors between them be written in other units.

LayerNorm multiplies what it takes in, an activation function what it gives; the gains undo, or are undone by, what was divided
out of weights (docs/adr/0011).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from quietformer.config.recorded_changes import changes_of, record_changes_
from quietformer.errors import CheckpointError

GAIN = "quiet_gain"
"""The buffer with the gains; its name is what checkpoints are checked for."""


class GainedLayerNorm(nn.LayerNorm):
    """LN(gain * x), the gains being no parameters: they undo what was divided out before."""

    quiet_gain: Tensor

    @classmethod
    def around(cls, norm: nn.LayerNorm) -> GainedLayerNorm:
        """With the same parameters, not copies of them, and gains of one."""
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made.__dict__.update(
            {name: value for name, value in norm.__dict__.items() if name not in ("_buffers", "_modules")}
        )
        made.register_buffer(GAIN, torch.ones_like(norm.weight, requires_grad=False))
        return made

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input * self.quiet_gain.to(input.dtype))


class GainedActivation(nn.Module):
    """gain * f(x), f an activation function; the projection that reads it undoes the gains."""

    acts_as_activation = True  # for whoever traces a forward pass
    quiet_gain: Tensor

    def __init__(self, function: nn.Module, like: Tensor) -> None:
        """Gains of one for the features, the type and the place of `like`, a bias or a row of weights."""
        super().__init__()
        self.function = function
        self.register_buffer(GAIN, torch.ones_like(like, requires_grad=False))
        self.train(function.training)

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self.function(input)
        return output * self.quiet_gain.to(output.dtype)


Gained = GainedLayerNorm | GainedActivation


def takes_gains(norm: nn.Module) -> bool:
    """Whether it is a plain LayerNorm: not a kind of its own, nor one whose forward somebody has exchanged."""
    return type(norm) is nn.LayerNorm and norm.weight is not None and "forward" not in vars(norm)


def is_function(module: nn.Module) -> bool:
    """Whether a module is an activation function that learns nothing, so that all it does is in its class."""
    home = type(module).__module__
    named = home.startswith(("torch.nn.modules.activation", "transformers.activations"))
    return named and "forward" not in vars(module) and not module.state_dict()


def gained_norms(model: nn.Module) -> list[str]:
    """The norms with gains that are in the model, by name."""
    return [name for name, module in model.named_modules() if isinstance(module, GainedLayerNorm)]


def gained_activations(model: nn.Module) -> dict[str, int]:
    """The activation functions with gains that are in the model, by name, and how many features each has."""
    return {
        name: len(module.quiet_gain) for name, module in model.named_modules() if isinstance(module, GainedActivation)
    }


def gain_(model: PreTrainedModel, norms: Iterable[str] = (), activations: dict[str, int] | None = None) -> None:
    """Exchange these modules for ones with gains of one, in place, all or none; saved with the model and with its parts."""
    made: dict[str, Gained] = {}
    for name in norms:
        norm = _module(model, name)
        if not takes_gains(norm):
            raise CheckpointError(f"{name!r} is no plain LayerNorm with a weight, so it takes no gains")
        assert isinstance(norm, nn.LayerNorm)
        made[name] = GainedLayerNorm.around(norm)
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    for name, features in (activations or {}).items():
        function = _module(model, name)
        if not is_function(function):
            raise CheckpointError(f"{name!r} is no plain activation function, so it takes no gains")
        made[name] = GainedActivation(function, like.new_empty(features))
    for name, module in made.items():
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, module)
    written: set[int] = set()
    for part in model.modules():
        if isinstance(part, PreTrainedModel) and id(part.config) not in written:
            written.add(id(part.config))
            inside = {"gained_norms": tuple(gained_norms(part)), "gained_activations": gained_activations(part)}
            if any(inside.values()):
                record_changes_(part, changes_of(part).model_copy(update=inside))


def _module(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError:
        raise CheckpointError(f"there is no {name!r} in {type(model).__name__} to give gains to") from None
