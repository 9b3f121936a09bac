"""Terms added to the training loss: the activation penalty of the paper's fine-tuning, and the place for others."""

# B sequences, T tokens, d features

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from pydantic import Field
from torch import Tensor, nn

from quietformer.errors import QuietformerError
from quietformer.families.layout import find_blocks
from quietformer.specs import RegularizerSpec, regularizers


class Regularizer(ABC):
    """Watches a model's forward pass and says what it adds to the loss of that pass."""

    @abstractmethod
    def term(self) -> Tensor | None:
        """What the last forward pass adds to the loss, and forget it; None if the model was not run."""

    @abstractmethod
    def detach_(self) -> None:
        """Take the hooks out of the model again."""


class ActivationPenaltyTerm(Regularizer):
    """strength * mean over sites of mean(relu(|x| - threshold)^2)."""

    def __init__(self, spec: ActivationPenalty, model: nn.Module) -> None:
        self.spec = spec
        self._seen: list[Tensor] = []
        # Recomputing a checkpointed block calls the hooks again, after the term was asked for.
        self._handles = [model.register_forward_pre_hook(lambda module, args: self._seen.clear())]
        for block in find_blocks(model):
            for watch in block.watches():
                if watch.site == spec.site:
                    self._handles.append(watch.module.register_forward_hook(self._on_output))
        if len(self._handles) == 1:
            raise QuietformerError(f"{type(model).__name__} has no site {spec.site!r} for the activation penalty")

    def _on_output(self, module: nn.Module, args: object, output: object) -> None:
        x = output[0] if isinstance(output, tuple) else output
        if torch.is_grad_enabled() and isinstance(x, Tensor) and x.requires_grad:
            excess = torch.relu(x.float().abs() - self.spec.threshold)
            self._seen.append(excess.square().mean())

    def term(self) -> Tensor | None:
        seen, self._seen = self._seen, []
        return self.spec.strength * torch.stack(seen).mean() if seen else None

    def detach_(self) -> None:
        for handle in self._handles:
            handle.remove()


@regularizers.register("activation_penalty")
class ActivationPenalty(RegularizerSpec):
    """A quadratic penalty on what lies past a threshold at one kind of site, by default the FFN's output."""

    strength: float = Field(default=1e-3, gt=0)
    threshold: float = Field(default=0.0, ge=0, description="values up to this cost nothing")
    site: str = "ffn_output"

    def build(self, model: nn.Module) -> Regularizer:
        return ActivationPenaltyTerm(self, model)
