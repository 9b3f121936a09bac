"""Terms added to the training loss: the activation penalty of the paper's fine-tuning, one on ranges, the place for others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor, nn

from quietformer.architectures.layout import Watch, find_blocks
from quietformer.config.regularizers import RegularizerSpec, regularizers
from quietformer.config.spec_base import listed
from quietformer.errors import QuietformerError


def _named(value: Any) -> Any:
    """One name may stand alone."""
    return (value,) if isinstance(value, str) else listed(value)


Cost = Callable[[Tensor], Tensor]

BLOCK = "block"
"""The site of a whole block, beside those inside it."""


class Regularizer(ABC):
    """Watches a model's forward pass and says what it adds to the loss of that pass."""

    @abstractmethod
    def term(self) -> Tensor | None:
        """What the last forward pass adds to the loss, and forget it; None if the model was not run."""

    @abstractmethod
    def detach_(self) -> None:
        """Take the hooks out of the model again."""


class SiteTerm(Regularizer):
    """strength * mean over sites of what `cost` makes of the tensor there."""

    def __init__(self, name: str, sites: Iterable[str], strength: float, cost: Cost, model: nn.Module) -> None:
        self._strength, self._cost = strength, cost
        self._seen: list[Tensor] = []
        self._mask: Tensor | None = None
        self._handles = [model.register_forward_pre_hook(self._on_call, with_kwargs=True)]
        blocks = find_blocks(model)
        watches = [watch for block in blocks for watch in block.watches()]
        watches += [Watch(BLOCK, block.index, block.module, "output") for block in blocks]
        known = sorted({watch.site for watch in watches})
        for site in sites:
            where, _, end = site.partition(".")
            found = [watch for watch in watches if watch.site == where and end in ("", "input", "output")]
            if not found:
                raise QuietformerError(
                    f"{type(model).__name__} has no tensor {site!r} for the {name}; "
                    + (
                        f"it has {', '.join(known)}, of each also its .input"
                        if known
                        else "none of its tensors is known"
                    )
                )
            for watch in found:
                # First of all hooks: a resumed run finds quantizers here that came later in an uninterrupted one.
                hook = self._on_input if end == "input" else self._on_output
                self._handles.append(watch.module.register_forward_hook(hook, prepend=True))

    def _on_call(self, module: nn.Module, args: object, kwargs: dict[str, object]) -> None:
        self._seen.clear()  # recomputing a checkpointed block has called the hooks again, after the term was asked for
        mask = kwargs.get("attention_mask")
        self._mask = mask.bool() if isinstance(mask, Tensor) and mask.dim() == 2 else None

    def _on_input(self, module: nn.Module, args: tuple[object, ...], output: object) -> None:
        self._see(args[0] if args else None)

    def _on_output(self, module: nn.Module, args: object, output: object) -> None:
        self._see(output[0] if isinstance(output, tuple) else output)

    def _see(self, x: object) -> None:
        if torch.is_grad_enabled() and isinstance(x, Tensor) and x.requires_grad:
            text = self._mask if self._mask is not None and self._mask.shape == x.shape[:2] else ...
            self._seen.append(self._cost(x[text].float()))  # padding means nothing

    def term(self) -> Tensor | None:
        seen, self._seen = self._seen, []
        return self._strength * torch.stack(seen).mean() if seen else None

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
        return SiteTerm("activation penalty", [self.site], self.strength, self._cost, model)

    def _cost(self, x: Tensor) -> Tensor:
        """mean(relu(|x| - threshold)^2)."""
        return torch.relu(x.abs() - self.threshold).square().mean()


@regularizers.register("range_penalty")
class RangePenalty(RegularizerSpec):
    """A quadratic penalty on what lies past so many standard deviations of its site, measured in them.

    What a tensor loses in INT8 goes with its range over its spread, whatever its size.
    """

    strength: float = Field(default=1.0, gt=0)
    deviations: float = Field(default=7.0, gt=0, description="values up to so many cost nothing")
    sites: Annotated[tuple[str, ...], BeforeValidator(_named)] = Field(
        default=("attention_norm.input", "attention_norm", "ffn_norm.input"),
        description="outputs of these, or with .input what goes in",
    )

    def build(self, model: nn.Module) -> Regularizer:
        return SiteTerm("range penalty", self.sites, self.strength, self._cost, model)

    def _cost(self, x: Tensor) -> Tensor:
        """mean(relu(|x| / s - deviations)^2), the deviation s being taken as it is."""
        spread = x.detach().std().clamp(min=torch.finfo(x.dtype).tiny)
        return torch.relu(x.abs() / spread - self.deviations).square().mean()


@regularizers.register("tweo")
class Tweo(RegularizerSpec):
    """The loss term of TWEO (Liang et al., arXiv 2511.23225): a high power of what blocks give, over what is usual.

    Values below the threshold cost next to nothing, values far above it very much.
    """

    strength: float = Field(default=0.01, gt=0)
    threshold: float = Field(default=3.0, gt=0, description="tau: what a value is divided by")
    power: float = Field(default=4.0, gt=1)
    site: str = Field(default=BLOCK, description="block: the output of each block")

    def build(self, model: nn.Module) -> Regularizer:
        return SiteTerm("TWEO loss", [self.site], self.strength, self._cost, model)

    def _cost(self, x: Tensor) -> Tensor:
        """mean((|x| / tau)^p)."""
        return (x.abs() / self.threshold).pow(self.power).mean()
