"""Hooks that hand each watched tensor to whoever counts, and are gone afterwards, errors or not."""

# B sequences, T tokens, H heads, Q queries, K keys, D features of a head

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from quietformer.architectures.layout import Block, Watch, find_blocks
from quietformer.attention.core import AttentionCore
from quietformer.attention.inject import apply_attention_, attention_cores, remove_attention_
from quietformer.config.attention import AttentionSpec
from quietformer.errors import UnsupportedModelError


@dataclass
class AttentionRecord:
    """What one attention layer computed for one batch."""

    query: Tensor
    key: Tensor
    value_BHKD: Tensor
    scores: Tensor
    probabilities_BHQK: Tensor
    context_BQHD: Tensor
    gate: Tensor | None  # (B, Q, H, 1 or D), or (B, K, H, 1 or D) if the gates are of the values
    gate_of_values: bool
    visible: Tensor | None
    prefix: int = 0  # the first keys and values are those of a prefix

    def of_text(self) -> AttentionRecord:
        """The same without the keys and values of a prefix; what a query gives to them is then missing in its row."""
        first = self.prefix
        return dataclasses.replace(
            self,
            key=self.key[..., first:, :],
            value_BHKD=self.value_BHKD[..., first:, :],
            scores=self.scores[..., first:],
            probabilities_BHQK=self.probabilities_BHQK[..., first:],
            visible=None if self.visible is None else self.visible[..., first:],
            prefix=0,
        )


SiteListener = Callable[[str, int, Tensor], None]

AttentionListener = Callable[[int, AttentionRecord], None]


@contextlib.contextmanager
def with_cores(model: nn.Module) -> Iterator[bool]:
    """The model with a core in every layer: its own, or for the moment the vanilla one, which computes the same.

    Gives False for a model that cannot take one; its attention then stays unseen.
    """
    if any(True for _ in attention_cores(model)):
        yield True
        return
    try:
        apply_attention_(model, AttentionSpec())
    except UnsupportedModelError:
        yield False
        return
    try:
        yield True
    finally:
        remove_attention_(model)


@contextlib.contextmanager
def record(
    model: nn.Module,
    on_site: SiteListener | None = None,
    on_attention: AttentionListener | None = None,
    *,
    watches: list[Watch] | None = None,
    blocks: list[Block] | None = None,
) -> Iterator[None]:
    """Call the listeners with every watched tensor (or these only) of every forward pass inside the block."""
    handles: list[RemovableHandle] = []
    blocks = find_blocks(model) if blocks is None else blocks
    passes = Passes(model, blocks)
    try:
        if on_site is not None:
            named = [watch for block in blocks for watch in block.watches()]
            handles += [_listen(watch, passes, on_site) for watch in (named if watches is None else watches)]
        if on_attention is not None:
            for layer, core in _cores_of(model, blocks):
                handles += _listen_to_core(layer, core, passes, on_attention)
        yield
    finally:
        for handle in (*handles, *passes.handles):
            handle.remove()


class Passes:
    """Counts how often each block has begun in this forward pass, since each pass of a shared block is a layer."""

    def __init__(self, model: nn.Module, blocks: list[Block]) -> None:
        self.begun: Counter[int] = Counter()
        self.handles = [model.register_forward_pre_hook(lambda *_: self.begun.clear())]
        self.handles += [block.module.register_forward_pre_hook(self._counter(block.index)) for block in blocks]

    def _counter(self, index: int) -> Callable[..., None]:
        def hook(_: nn.Module, args: Any) -> None:
            self.begun[index] += 1

        return hook

    def layer(self, index: int) -> int:
        """The layer that the block of this index is at the moment."""
        return index + max(0, self.begun[index] - 1)


def _cores_of(model: nn.Module, blocks: list[Block]) -> Iterator[tuple[int, AttentionCore]]:
    cores = dict(attention_cores(model))
    for block in blocks:
        if block.attention in cores:
            yield block.index, cores[block.attention]


def _listen(watch: Watch, passes: Passes, listener: SiteListener) -> RemovableHandle:
    def after(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        tensor = (args[0] if args else None) if watch.end == "input" else output
        tensor = tensor[0] if isinstance(tensor, tuple) else tensor
        if isinstance(tensor, Tensor):
            listener(watch.site, passes.layer(watch.layer), tensor.detach())

    return watch.module.register_forward_hook(after)


def _listen_to_core(
    index: int, core: AttentionCore, passes: Passes, listener: AttentionListener
) -> list[RemovableHandle]:
    seen: dict[str, Any] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            seen[name] = output.detach().cpu()  # metrics are computed on the CPU, wherever the model runs

        return hook

    def keep_visible(_: nn.Module, args: tuple[Any, ...]) -> None:
        seen["visible"] = args[1].cpu() if len(args) > 1 and args[1] is not None else None

    def done(_: nn.Module, args: Any, output: Any) -> None:
        values, gate = seen["value"], seen.get("gate")
        of_values = core.gating is not None and core.gating.of_values
        heads = seen["probabilities"].shape[1]
        listener(
            passes.layer(index),
            AttentionRecord(
                query=seen["query"],
                key=seen["key"],
                value_BHKD=values.repeat_interleave(heads // values.shape[1], 1)
                if values.shape[1] != heads
                else values,
                scores=seen["scores"],
                probabilities_BHQK=seen["probabilities"],
                context_BQHD=seen["context"],
                gate=gate.transpose(1, 2) if of_values and gate is not None else gate,
                gate_of_values=of_values,
                visible=seen.get("visible"),
                prefix=0 if core.prefix is None else core.prefix.length,
            ),
        )
        seen.clear()

    handles = [core.taps[name].register_forward_hook(keep(name)) for name in core.taps]
    handles.append(core.normalizer.register_forward_pre_hook(keep_visible))
    handles.append(core.register_forward_hook(done))
    return handles


def visible_pairs(record: AttentionRecord, valid_BT: Tensor | None) -> Tensor:
    """Pairs of a real query with a key it can see, (B, 1, Q, K)."""
    n_batch, _, n_queries, n_keys = record.probabilities_BHQK.shape
    pairs = torch.ones(n_batch, 1, n_queries, n_keys, dtype=torch.bool, device=record.probabilities_BHQK.device)
    if record.visible is not None:
        pairs = pairs & record.visible[:, :1]
    if valid_BT is not None and valid_BT.shape == (n_batch, n_queries):
        pairs = pairs & valid_BT[:, None, :, None]
    return pairs
