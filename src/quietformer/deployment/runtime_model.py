"""What every runtime's model shares: it takes a batch of tensors and gives its output by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quietformer.architectures.forward import Batch
from quietformer.errors import QuietformerError

Feeds = dict[str, np.ndarray[Any, Any]]


class RuntimeModel(ABC):
    """A model file that some runtime runs, called as a model is."""

    inputs: list[str]
    output: str
    shapes: dict[str, list[int | None]]
    """Of every input; None where any size will do."""
    precision = "f32"
    """What the runtime computes in between integer products."""

    @abstractmethod
    def run(self, feeds: Feeds) -> np.ndarray[Any, Any]:
        """One pass, from arrays by the name of the input."""

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        return {self.output: torch.from_numpy(self.run(self.feeds(batch)))}

    def feeds(self, batch: Batch) -> Feeds:
        """Token types are zero for single texts and every token counts, unless the batch says otherwise."""
        shape = tuple(next(iter(batch.values())).shape)
        usual = {"token_type_ids": np.zeros, "attention_mask": np.ones}
        if missing := [name for name in self.inputs if name not in batch and name not in usual]:
            raise QuietformerError(f"the model takes {missing[0]}, which the batch ({', '.join(batch)}) does not have")
        return {
            name: batch[name].numpy() if name in batch else usual[name](shape, dtype=np.int64) for name in self.inputs
        }
