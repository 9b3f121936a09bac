"""LayerNorm that multiplies what it takes in by a gain for each feature: what goes in may then be written in other units."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from quietformer.errors import CheckpointError
from quietformer.section import model_spec, write_section_

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


def takes_gains(norm: nn.Module) -> bool:
    """Whether it is a plain LayerNorm: not a kind of its own, nor one whose forward somebody has exchanged."""
    return type(norm) is nn.LayerNorm and norm.weight is not None and "forward" not in vars(norm)


def gained_norms(model: nn.Module) -> list[str]:
    """The norms with gains that are in the model, by name."""
    return [name for name, module in model.named_modules() if isinstance(module, GainedLayerNorm)]


def gain_norms_(model: PreTrainedModel, names: Iterable[str]) -> None:
    """Exchange these LayerNorms for ones with gains of one, in place, all or none; saved with the model and with its parts."""
    norms: dict[str, nn.LayerNorm] = {}
    for name in names:
        try:
            norm = model.get_submodule(name)
        except AttributeError:
            raise CheckpointError(f"there is no {name!r} in {type(model).__name__} to give gains to") from None
        if not takes_gains(norm):
            raise CheckpointError(f"{name!r} is no plain LayerNorm with a weight, so it takes no gains")
        assert isinstance(norm, nn.LayerNorm)
        norms[name] = norm
    for name, norm in norms.items():
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, GainedLayerNorm.around(norm))
    written: set[int] = set()
    for part in model.modules():
        if isinstance(part, PreTrainedModel) and id(part.config) not in written:
            written.add(id(part.config))
            if inside := tuple(gained_norms(part)):
                write_section_(part, model_spec(part).model_copy(update={"gained_norms": inside}))
