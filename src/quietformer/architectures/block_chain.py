"""The blocks of a model one at a time, for all batches, on stored hidden states.

A model calls its blocks one after the other. Here a pass is taken apart: `begin` runs what is before the blocks and records what
every block is called with, `run_block` runs one block, and inside `answering` the model runs what is after the blocks.
Every operation is that of an ordinary pass of the same batch, so the results are the same bit for bit.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from quietformer.architectures.forward import Batch, has_decoder, in_eval_mode, run
from quietformer.architectures.layout import Block, find_blocks, in_passes
from quietformer.errors import QuietformerError

HIDDEN = "hidden_states"
"""The name under which blocks get what the block before gave, where they do not get it first."""

WHOLE = "it cannot be taken layer by layer"


@dataclass(frozen=True)
class Call:
    """What a block is called with beside the hidden states: masks and positions, which the blocks share."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def of(self, block: nn.Module, hidden: Tensor) -> Any:
        """Call a block. It gets an empty cache of its own where the model gave it one: the cache is as empty for its keys there,
        but it lays keys out in another way than a pass without one, and the last bits of a product depend on that."""
        args = tuple(map(_emptied, self.args))
        kwargs = {name: _emptied(value) for name, value in self.kwargs.items()}
        device = next(block.parameters()).device
        if device.type != "cpu":
            args, kwargs = tree_map_only(Tensor, lambda x: x.to(device), (args, kwargs))
            hidden = hidden.to(device)
        return block(hidden, *args, **kwargs)


def _emptied(value: Any) -> Any:
    # The one that was recorded stays empty, since no block ran then.
    return copy.deepcopy(value) if isinstance(value, Cache) else value


class _EndOfBlocksError(Exception):
    """Ends a pass after the last block."""


class BlockChain:
    """The blocks of one model, checked to be called one after the other."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model, self.blocks = model, find_blocks(model)
        name = type(model).__name__
        if has_decoder(model):
            raise QuietformerError(f"{name} is an encoder-decoder; {WHOLE}")
        if not self.blocks:
            raise QuietformerError(f"no transformer blocks were found in {name}; {WHOLE}")
        owners: dict[int, str] = {}
        for block in self.blocks:
            for parameter in block.module.parameters():
                if owners.setdefault(id(parameter), block.name) != block.name:
                    raise QuietformerError(f"{owners[id(parameter)]} and {block.name} share weights; {WHOLE}")

    def check(self, batch: Batch) -> None:
        """Refuse a model that runs a block several times; the pass needs no numbers."""
        with in_eval_mode(self.model), torch.no_grad():
            often = [block.name for block in in_passes(self.blocks, lambda: run(self.model, batch)) if block.passes > 1]
        if often:
            raise QuietformerError(f"{type(self.model).__name__} runs {often[0]} several times in a pass; {WHOLE}")

    def begin(self, batch: Batch) -> tuple[Tensor, list[Call]]:
        """The input of the first block, and what every block is called with; the blocks themselves need no numbers."""
        calls: list[Call] = []
        first: list[Tensor] = []

        def record(block: Block, hidden: Tensor, call: Call) -> Any:
            if len(calls) != block.index or (first and hidden is not first[0]):
                raise QuietformerError(
                    f"{type(self.model).__name__} does more between its blocks than to pass hidden states on; {WHOLE}"
                )
            first[:] = [hidden]
            calls.append(call)
            if len(calls) == len(self.blocks):
                raise _EndOfBlocksError
            return self._in_its_form(block, hidden, call)

        with self._replaced(record), contextlib.suppress(_EndOfBlocksError):
            run(self.model, batch)
        if len(calls) < len(self.blocks):
            raise QuietformerError(f"{type(self.model).__name__} ran only {len(calls)} of its blocks; {WHOLE}")
        return first[0].detach().clone(), calls

    def run_block(self, index: int, hidden: Tensor, call: Call) -> Tensor:
        """The output of one block, which must have its numbers; on the device that they are on."""
        output = call.of(self.blocks[index].module, hidden)
        tensor: Tensor = output if isinstance(output, Tensor) else output[0]
        return tensor.cpu()

    @contextlib.contextmanager
    def answering(self, last: Callable[[int], Tensor]) -> Iterator[None]:
        """Inside, the model gives its outputs from what its last block has given: `last(n)` in its nth pass."""
        passes = iter(range(10**9))

        def answer(block: Block, hidden: Tensor, call: Call) -> Any:
            if block.index == len(self.blocks) - 1:
                hidden = last(next(passes))
            return self._in_its_form(block, hidden, call)

        with self._replaced(answer):
            yield

    @contextlib.contextmanager
    def _replaced(self, answer: Callable[[Block, Tensor, Call], Any]) -> Iterator[None]:
        """Every block replaced by a stand-in that answers in its place."""
        places: list[tuple[nn.Module, str, nn.Module]] = []
        for block in self.blocks:
            owner, _, name = block.name.rpartition(".")
            places.append((self.model.get_submodule(owner), name, block.module))
        for (home, name, _), block in zip(places, self.blocks, strict=True):
            home._modules[name] = _StandIn(block, answer)
        try:
            yield
        finally:
            for home, name, module in places:
                home._modules[name] = module

    def _in_its_form(self, block: Block, hidden: Tensor, call: Call) -> Any:
        """Hidden states as the block returns them: by themselves, or first of several."""
        if not hasattr(self, "_tuples"):
            with torch.no_grad():
                output = call.of(block.module, hidden)
            self._tuples = isinstance(output, tuple)
        return (hidden,) if self._tuples else hidden


class _StandIn(nn.Module):
    """In the place of a block: knows what the block knows, and computes nothing."""

    def __init__(self, block: Block, answer: Callable[[Block, Tensor, Call], Any]) -> None:
        super().__init__()
        self.__dict__["block"], self.__dict__["answer"] = block, answer  # not a child: its hooks are not to run

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["block"].module, name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        hidden, rest = (args[0], args[1:]) if args else (kwargs.pop(HIDDEN, None), ())
        if not isinstance(hidden, Tensor):
            raise QuietformerError(f"{self.__dict__['block'].name} is not called with hidden states; {WHOLE}")
        return self.__dict__["answer"](self.__dict__["block"], hidden, Call(rest, kwargs))
