"""Clipped softmax attention in blocks of queries: memory linear in the sequence length, exact forward and backward.

A block holds all keys of its rows, so no results have to be merged between blocks. The backward pass recomputes the weights of
each block. Stretching and clipping to [0, 1] equals c * clamp(p - t, 0, 1/c) with c = zeta - gamma and t = -gamma / c; the
factor c is applied to the rows of the output.
"""

# B batch, H heads, Q queries, K keys, D features per head; a block has n heads, r queries and k keys of one sequence

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from quietformer.attention.dtypes import accumulation_dtype
from quietformer.attention.kernels.compiled_rows import Bounds, gradients_, weights_
from quietformer.attention.masks import AnyMask, Causal, read_mask, split_mask

BLOCK_WEIGHTS = 2**19
"""Weights per block and thread: 2 MiB of float32, which stay in the cache from one pass to the next."""

BLOCK_ROWS = 256
"""Maximum number of queries per block: with more of them, fewer heads fit into one batched matrix product."""

LEAST_ROWS = 32
"""Minimum number of queries per block: with fewer of them, matrix products are inefficient."""


@dataclass(frozen=True)
class Clipping:
    """clip((zeta - gamma) p + gamma, 0, 1), then dropout; a tensor gamma broadcasts over (B, H, Q, 1)."""

    gamma: Tensor | float
    zeta: float = 1.0
    dropout: float = 0.0


def clipped_attention(
    query_BHQD: Tensor, key_BHKD: Tensor, value_BHKD: Tensor, clipping: Clipping, *, scaling: float, mask: AnyMask = None,
) -> Tensor:  # fmt: skip
    """The context (B, H, Q, D) of clipped softmax attention."""
    dtype = accumulation_dtype(query_BHQD.dtype)
    query, key, value = (x.to(dtype) for x in (query_BHQD, key_BHKD, value_BHKD))
    tensor_mask, causal = split_mask(mask)
    work = _Work(clipping, scaling, causal)
    with torch.autocast(query.device.type, enabled=False):
        context: Tensor = _ClippedAttention.apply(query, key, value, tensor_mask, work)  # type: ignore[no-untyped-call]
    return context.to(query_BHQD.dtype)


@dataclass(frozen=True)
class _Block:
    """Some heads and queries of one sequence."""

    sequence: int
    heads: slice
    rows: slice
    keys: slice  # from the first to the last key that any of the rows may see

    @property
    def shape(self) -> tuple[int, int, int]:
        return _length(self.heads), _length(self.rows), _length(self.keys)

    def part(self, x: Tensor) -> Tensor:
        """The part (n, r, k) of a tensor that broadcasts over (B, H, Q, K)."""
        x = x[(None,) * (4 - x.dim())]
        parts = (slice(self.sequence, self.sequence + 1), self.heads, self.rows, self.keys)
        return x[tuple(slice(None) if size == 1 else part for size, part in zip(x.shape, parts, strict=True))][0]


class _ClippedAttention(torch.autograd.Function):
    """Saves queries, keys, values and mask; the weights are recomputed in the backward pass."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, work: _Work) -> Tensor:
        ctx.save_for_backward(query, key, value, mask)
        ctx.work = work
        n_batch, n_heads, n_queries, _ = query.shape
        # In memory as (B, Q, H, D), since the next step of the layer concatenates the heads.
        context = query.new_empty(n_batch, n_queries, n_heads, value.shape[-1]).transpose(1, 2)
        work.begin(query, key, mask, buffers=1)
        for block in work.blocks:
            weights_nrk = work.scores(block, query, key)
            weights_(weights_nrk, work.bounds(block))
            work.drop_(block, weights_nrk)
            product_nrD = torch.bmm(weights_nrk, value[block.sequence, block.heads, block.keys])
            context[block.sequence, block.heads, block.rows] = work.stretched_(block, product_nrD)
        work.end()
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_context: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast(grad_context.device.type, enabled=False):
            query, key, value, mask = ctx.saved_tensors
            return *_backward(query, key, value, mask, grad_context, ctx.work), None, None


def _backward(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, grad_context: Tensor, work: _Work
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of queries, keys and values."""
    grad_query = torch.empty_like(query)
    # Full size from the start, since every block of rows adds to them.
    grad_key, grad_value = key.new_zeros(key.shape), value.new_zeros(value.shape)
    work.begin(query, key, mask, buffers=3)
    for block in work.blocks:
        b, heads, rows, keys = block.sequence, block.heads, block.rows, block.keys
        scores_nrk = work.scores(block, query, key)
        weights_nrk, grad_nrk = work.buffer(block, 1), work.buffer(block, 2)
        outer_nrD = work.stretched_(block, grad_context[b, heads, rows].clone(memory_format=torch.contiguous_format))
        torch.bmm(outer_nrD, value[b, heads, keys].transpose(1, 2), out=grad_nrk)
        kept = work.drop_(block, grad_nrk)
        gradients_(scores_nrk, weights_nrk, grad_nrk, work.bounds(block))
        if kept is not None:
            weights_nrk.mul_(kept)
        grad_value[b, heads, keys].baddbmm_(weights_nrk.transpose(1, 2), outer_nrD)
        grad_query[b, heads, rows] = torch.bmm(grad_nrk, key[b, heads, keys]).mul_(work.scaling)
        grad_key[b, heads, keys].baddbmm_(grad_nrk.transpose(1, 2), query[b, heads, rows], alpha=work.scaling)
    work.end()
    return grad_query, grad_key, grad_value


class _Work:
    """The steps per block that forward and backward share, and their buffers."""

    def __init__(self, clipping: Clipping, scaling: float, causal: Causal | None) -> None:
        self.clipping, self.scaling, self.causal = clipping, scaling, causal
        self.mask: Tensor | None = None
        self.seed = int(torch.randint(2**62, ())) if clipping.dropout else 0
        self.blocks: list[_Block] = []
        self._buffers: list[Tensor] = []
        self._last: tuple[Any, tuple[Tensor | None, Tensor | None]] | None = None

    def begin(self, query: Tensor, key: Tensor, mask: Tensor | None, *, buffers: int) -> None:
        self.mask = mask
        if not self.blocks:
            self.blocks = list(self._split(query.shape, key.shape[2]))
        largest = max((_size(block) for block in self.blocks), default=0)
        self._buffers = [query.new_empty(largest) for _ in range(buffers)]

    def end(self) -> None:
        self._buffers, self.mask, self._last = [], None, None

    def buffer(self, block: _Block, place: int) -> Tensor:
        return self._buffers[place][: _size(block)].view(block.shape)

    def scores(self, block: _Block, query: Tensor, key: Tensor) -> Tensor:
        scores_nrk = self.buffer(block, 0)
        rows_nrD = query[block.sequence, block.heads, block.rows]
        keys_nDk = key[block.sequence, block.heads, block.keys].transpose(1, 2)
        torch.baddbmm(scores_nrk, rows_nrD, keys_nDk, beta=0, alpha=self.scaling, out=scores_nrk)
        if self._only_causal:  # every row sees the keys up to the position of the first row
            first = block.rows.start + self._offset + 1
            if first < block.keys.stop:
                _, seen = self._masked(replace(block, keys=slice(first, block.keys.stop)), scores_nrk.dtype)
                assert seen is not None
                scores_nrk[..., first:].masked_fill_(~seen, torch.finfo(scores_nrk.dtype).min)
            return scores_nrk
        bias, _ = self._masked(block, scores_nrk.dtype)
        return scores_nrk if bias is None else scores_nrk.add_(bias)

    @property
    def _offset(self) -> int:
        return 0 if self.causal is None else self.causal.offset

    @property
    def _only_causal(self) -> bool:
        return self.causal is not None and self.causal.padding_BK is None and self.causal.offset >= 0

    def _masked(self, block: _Block, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
        """The bias of a block and its visible keys, each (n or 1, r or 1, k or 1); the last result is cached."""
        shared = self.mask is None or self.mask.dim() < 4 or self.mask.shape[1] == 1
        key = (block.sequence, slice(None) if shared else block.heads, block.rows, block.keys, dtype)
        if self._last is None or self._last[0] != key:
            part = None if self.mask is None else block.part(self.mask)
            if self.causal is not None:
                part = self.causal.visible(slice(block.sequence, block.sequence + 1), block.rows, block.keys)[0]
            self._last = key, read_mask(part, _length(block.keys), dtype)
        return self._last[1]

    def bounds(self, block: _Block) -> Bounds:
        """t and 1/c of the module's docstring; with zeta = 1 no weight reaches 1/c, so there is no upper bound."""
        gamma, zeta = self._gamma(block), self.clipping.zeta
        stretch = zeta - gamma
        return Bounds(-gamma / stretch, 1 / stretch if zeta > 1 else None)

    def stretched_(self, block: _Block, rows_nrD: Tensor) -> Tensor:
        """Multiply rows by c, and by 0 where a row sees no key."""
        rows_nrD.mul_(self.clipping.zeta - self._gamma(block))
        if self._only_causal:
            return rows_nrD
        _, seen = self._masked(block, rows_nrD.dtype)
        return rows_nrD if seen is None else rows_nrD.mul_(seen.any(-1, keepdim=True))

    def drop_(self, block: _Block, weights_nrk: Tensor) -> Tensor | None:
        """Apply dropout and return its factors; both passes draw the same ones, however heads are split into blocks."""
        if not self.clipping.dropout:
            return None
        kept = 1 - self.clipping.dropout
        chosen = torch.empty_like(weights_nrk)
        generator = torch.Generator(weights_nrk.device)
        for place, head in enumerate(range(block.heads.start, block.heads.stop)):
            # Seeded with a hash of the position, since adjacent seeds could give correlated choices.
            generator.manual_seed(hash((self.seed, block.sequence, head, block.rows.start)) & (2**63 - 1))
            chosen[place].bernoulli_(kept, generator=generator)
        weights_nrk.mul_(chosen.div_(kept) if kept else chosen)
        return chosen

    def _split(self, shape: torch.Size, n_keys: int) -> Iterator[_Block]:
        """Blocks ordered by sequence, rows, heads: a mask without a head dimension is then read once for all heads."""
        n_batch, n_heads, n_queries, _ = shape
        rows = min(n_queries, BLOCK_ROWS, max(LEAST_ROWS, BLOCK_WEIGHTS // max(1, n_keys)))
        heads = min(n_heads, max(1, torch.get_num_threads() * BLOCK_WEIGHTS // max(1, rows * n_keys)))
        for sequence in range(n_batch):
            spans = [
                self._with_visible_keys(
                    _Block(sequence, slice(0, n_heads), slice(begin, min(begin + rows, n_queries)), slice(0, n_keys))
                )
                for begin in range(0, n_queries, rows)
            ]
            for block in spans:
                for head in range(0, n_heads, heads):
                    yield replace(block, heads=slice(head, min(head + heads, n_heads)))

    def _with_visible_keys(self, block: _Block) -> _Block:
        """The block with its keys limited to what any of its rows sees: a causal mask halves the work."""
        n_keys = block.keys.stop
        if self.causal is not None:
            return replace(block, keys=slice(0, min(n_keys, max(1, block.rows.stop + self.causal.offset))))
        _, visible = self._masked(block, torch.float32)
        if visible is None:
            return block
        seen = visible.flatten(0, -2).any(0).expand(n_keys).nonzero()
        return replace(block, keys=slice(int(seen[0]), int(seen[-1]) + 1) if len(seen) else slice(0, 1))

    def _gamma(self, block: _Block) -> Tensor | float:
        gamma = self.clipping.gamma
        if isinstance(gamma, Tensor):
            gamma = block.part(gamma)
            if gamma.numel() == 1:
                return float(gamma)
        return gamma


def _length(part: slice) -> int:
    return int(part.stop - part.start)


def _size(block: _Block) -> int:
    n, r, k = block.shape
    return n * r * k
