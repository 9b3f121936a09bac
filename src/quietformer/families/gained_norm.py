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


def gain_norms_(model: PreTrainedModel, names: Iterable[str]) -> None:
    """Exchange these LayerNorms for ones with gains of one, in place; saved with the model."""
    names = list(names)
    for name in names:
        try:
            norm = model.get_submodule(name)
        except AttributeError:
            raise CheckpointError(f"there is no {name!r} in {type(model).__name__} to give gains to") from None
        if isinstance(norm, GainedLayerNorm):
            continue
        if type(norm) is not nn.LayerNorm or norm.weight is None:
            raise CheckpointError(f"{name!r} is no LayerNorm with a weight, so it takes no gains")
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, GainedLayerNorm.around(norm))
    spec = model_spec(model)
    every = tuple(dict.fromkeys((*spec.gained_norms, *names)))
    write_section_(model, spec.model_copy(update={"gained_norms": every}))
