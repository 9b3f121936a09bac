"""What every runtime's model shares: it takes a batch of tensors and gives its output by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quietformer.architectures.forward import Batch
from quietformer.deployment.cache_names import MASK, POSITIONS, is_past
from quietformer.errors import QuietformerError, in_one_line

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]

SIZES = "its longest text may be shorter, or its tokenizer another model's"
OF_SIZES = ("shape", "dimension", "broadcast", "axis", "index", "indices", "idx", "bounds")
"""Words of runtimes that complain of sizes, or of numbers that are no place in a table."""


class Steps(ABC):
    """A graph with past keys and values that reads tokens bit by bit, and keeps what it has read."""

    @abstractmethod
    def read(self, feeds: Feeds) -> Array:
        """The logits of further tokens (B, T, V), from arrays by the name of the input, without the past."""


class RuntimeModel(ABC):
    """A model file that some runtime runs, called as a model is."""

    inputs: list[str]
    output: str
    shapes: dict[str, list[int | None]]
    """Of every input; None where any size will do."""
    types: Mapping[str, type[np.generic]] = MappingProxyType({})
    """Of every input, as far as it is known."""
    precision = "f32"
    """What the runtime computes in between integer products."""
    optional_inputs: tuple[str, ...] = ()
    """Inputs with a default."""

    @abstractmethod
    def run(self, feeds: Feeds) -> Array:
        """One pass, from arrays by the name of the input."""

    @abstractmethod
    def steps(self) -> Steps:
        """A text to be read bit by bit, from its beginning."""

    @property
    def has_cache(self) -> bool:
        """Whether it takes past keys and values, so that a text can be continued token by token."""
        return any(map(is_past, self.inputs))

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        feeds = self.feeds(batch)
        try:
            found = self.run(feeds)
        except MemoryError:
            raise
        except Exception as error:  # the runtimes' own kinds share no base
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in feeds.items() if name in batch)
            why = in_one_line(error)
            remedy = f"; {SIZES}" if any(word in why.lower() for word in OF_SIZES) else ""
            raise QuietformerError(f"the graph cannot run {shapes}: {why}{remedy}") from error
        return {self.output: torch.from_numpy(found)}

    def feeds(self, batch: Batch) -> Feeds:
        """Token types are zero for single texts, every token counts and nothing was read before, unless the batch says so."""
        shape = tuple(next(iter(batch.values())).shape)
        given = {name: self._typed(name, batch[name].numpy()) for name in self.inputs if name in batch}
        usual = {name: self.empty_past(name, shape[0]) for name in self.inputs if is_past(name)}
        if "input_ids" in given:
            mask = given.get(MASK, np.ones(shape, np.int64))
            usual |= {"token_type_ids": np.zeros(shape, np.int64), MASK: mask, POSITIONS: positions_of(mask)}
        for name in self.inputs:
            if name not in given and name not in usual:
                raise QuietformerError(f"the model takes {name}, which the batch ({', '.join(batch)}) does not have")
            if name not in given:
                given[name] = usual[name]
        return given

    def _typed(self, name: str, array: Array) -> Array:
        """In the type that the graph takes; whole numbers are no fractions, nor the other way round."""
        wanted = np.dtype(self.types.get(name, array.dtype))
        if (array.dtype.kind == "f") != (wanted.kind == "f"):
            raise QuietformerError(f"{name} must be {wanted}, got {array.dtype}; pass an array of {wanted}")
        return array.astype(wanted, copy=False)

    def empty_past(self, name: str, batch: int) -> Array:
        """Keys or values of no tokens."""
        first, *others = self.shapes[name]
        return np.zeros([batch if first is None else first, *(size or 0 for size in others)], np.float32)


def positions_of(mask_BT: Array) -> Array:
    """Places of tokens in their texts, which padding on the left does not move."""
    places: Array = np.maximum(mask_BT.cumsum(1) - 1, 0).astype(np.int64)
    return places
