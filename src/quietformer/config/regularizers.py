"""Terms that a recipe adds to the training loss."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from quietformer.config.registry import Registry
from quietformer.config.spec_base import Spec

if TYPE_CHECKING:
    from torch import nn


class RegularizerSpec(Spec):
    """A term added to the training loss."""

    @abstractmethod
    def build(self, model: nn.Module) -> Any:
        """A `Regularizer` attached to this model."""


regularizers: Registry[RegularizerSpec] = Registry("regularizer", home="quietformer.training.regularizers")
