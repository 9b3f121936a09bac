"""Modules with one gain per feature, for channel balancing (docs/adr/0011).

A LayerNorm multiplies its input by the gains, an activation function its output. Together with the rescaled weights around
them they leave the function of the model unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from quietformer.config.recorded_changes import changes_of, record_changes_
from quietformer.errors import CheckpointError

GAIN = "quiet_gain"
"""The name of the buffer with the gains, by which checkpoints are recognised."""


class GainedLayerNorm(nn.LayerNorm):
    """LN(gain * x). The gains are a buffer, not parameters: they undo the rescaling of the modules before."""

    quiet_gain: Tensor

    @classmethod
    def around(cls, norm: nn.LayerNorm) -> GainedLayerNorm:
        """A norm with the same parameters, not copies of them, and gains of one."""
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
    """gain * f(x) for an activation function f; the projection that reads it undoes the gains."""

    acts_as_activation = True  # read by architectures/trace.py
    quiet_gain: Tensor

    def __init__(self, function: nn.Module, like: Tensor) -> None:
        """Gains of one, with the length, dtype and device of `like`."""
        super().__init__()
        self.function = function
        self.register_buffer(GAIN, torch.ones_like(like, requires_grad=False))
        self.train(function.training)

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self.function(input)
        return output * self.quiet_gain.to(output.dtype)


Gained = GainedLayerNorm | GainedActivation


def takes_gains(norm: nn.Module) -> bool:
    """Whether it is a plain LayerNorm: not a subclass, and without a replaced forward method."""
    return type(norm) is nn.LayerNorm and norm.weight is not None and "forward" not in vars(norm)


def is_function(module: nn.Module) -> bool:
    """Whether a module is an activation function without state or replaced forward method."""
    home = type(module).__module__
    named = home.startswith(("torch.nn.modules.activation", "transformers.activations"))
    return named and "forward" not in vars(module) and not module.state_dict()


def gained_norms(model: nn.Module) -> list[str]:
    """The names of the norms with gains in the model."""
    return [name for name, module in model.named_modules() if isinstance(module, GainedLayerNorm)]


def gained_activations(model: nn.Module) -> dict[str, int]:
    """The names of the activation functions with gains in the model, and the number of features of each."""
    return {
        name: len(module.quiet_gain) for name, module in model.named_modules() if isinstance(module, GainedActivation)
    }


def gain_(model: PreTrainedModel, norms: Iterable[str] = (), activations: dict[str, int] | None = None) -> None:
    """Replace these modules by ones with gains of one, in place, all or none; the configs of the model and its parts say so."""
    made: dict[str, Gained] = {}
    for name in norms:
        norm = _module(model, name)
        if not takes_gains(norm):
            raise CheckpointError(f"{name!r} is no plain LayerNorm with a weight, so it cannot have gains")
        assert isinstance(norm, nn.LayerNorm)
        made[name] = GainedLayerNorm.around(norm)
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    for name, features in (activations or {}).items():
        function = _module(model, name)
        if not is_function(function):
            raise CheckpointError(f"{name!r} is no plain activation function, so it cannot have gains")
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
