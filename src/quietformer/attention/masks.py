"""Attention masks, built lazily: a (T, T) mask would take most of the memory of a long sequence.

transformers asks for a mask once per forward pass and hands it to every layer. `late_mask` returns a tensor subclass with the
shape and dtype of the mask for eager attention. Any torch operation on it builds the real mask; our own attention only asks
whether it is causal and which keys are padding.
"""

# B batch, Q queries, K keys

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, eager_mask

from quietformer.attention.dtypes import accumulation_dtype
from quietformer.config.recorded_changes import RecordedChanges

HIDDEN_BELOW = -9e3
"""An additive mask value at or below this hides the key: masks use -1e4 (-9984 in bfloat16), -1e9, -inf or a dtype's minimum."""


def read_mask(mask: Tensor | None, n_keys: int, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    """The bias a mask adds to the scores (float32 or wider) and the visible keys; both broadcast over (B, H, Q, K)."""
    if mask is None:
        return None, None
    dtype = accumulation_dtype(dtype)
    mask = mask[..., :n_keys]  # a static cache makes the mask longer than the keys
    visible = visible_keys(mask)
    bias = torch.zeros((), dtype=dtype, device=mask.device) if mask.dtype == torch.bool else mask.to(dtype)
    # The dtype's minimum and not -inf, which would turn a row without visible keys into NaN; its gradient would stay NaN
    # even if the output were overwritten. Filling the mask, which usually has no head dimension, and adding it is cheaper
    # than filling the scores.
    return torch.where(visible, bias, torch.finfo(dtype).min), visible


def visible_keys(mask: Tensor) -> Tensor:
    """True where a boolean or additive mask lets a query see a key."""
    return mask if mask.dtype == torch.bool else mask > HIDDEN_BELOW


@dataclass(frozen=True)
class Causal:
    """A causal mask without its numbers: query q sees the keys up to q + offset that are not padding."""

    n_queries: int
    n_keys: int
    offset: int = 0
    padding_BK: Tensor | None = None  # True where a key is real, False where it is padding
    device: torch.device | str = "cpu"

    def visible(self, sequence: slice, rows: slice, keys: slice) -> Tensor:
        """The boolean mask (b or 1, 1, r, k) of the given sequences, query rows and keys."""
        queries = torch.arange(rows.start, rows.stop, device=self.device)[:, None] + self.offset
        seen = (torch.arange(keys.start, keys.stop, device=self.device) <= queries)[None, None]
        return seen if self.padding_BK is None else seen & self.padding_BK[sequence, None, None, keys]

    def whole(self) -> Tensor:
        """The boolean mask (B or 1, 1, Q, K)."""
        return self.visible(slice(None), slice(0, self.n_queries), slice(0, self.n_keys))

    def count(self, by: Literal["sequence", "row"]) -> Tensor | int:
        """The number of visible keys: those any query of the sequence sees, or those of each row as (b or 1, 1, Q, 1)."""
        last = self.n_queries - 1 + self.offset
        if self.padding_BK is None:
            if by == "sequence":
                return min(self.n_keys, last + 1)
            return (
                (torch.arange(self.n_queries, device=self.device) + self.offset + 1)
                .clamp(max=self.n_keys)
                .view(1, 1, -1, 1)
            )
        upto_BK = self.padding_BK.cumsum(-1)
        if by == "sequence":
            return upto_BK[:, min(last, self.n_keys - 1)].view(-1, 1, 1, 1)
        places = (torch.arange(self.n_queries, device=self.device) + self.offset).clamp(max=self.n_keys - 1)
        return upto_BK[:, None, places, None]


AnyMask = Tensor | Causal | None
"""A boolean or additive mask that broadcasts over (B, H, Q, K), a causal mask without its numbers, or no mask."""


def split_mask(mask: AnyMask) -> tuple[Tensor | None, Causal | None]:
    """The mask as a tensor or as a description; at most one of the two is not None."""
    return (None, mask) if isinstance(mask, Causal) else (mask, None)


class LateMask(Tensor):
    """A mask with shape and dtype whose numbers are computed on first use; from then on it is an ordinary mask."""

    make: Callable[[], Tensor]
    made: Tensor | None
    causal: Causal | None  # None: every query sees all keys that are not padding
    padding_BK: Tensor | None

    @staticmethod
    def __new__(
        cls, shape: tuple[int, ...], dtype: torch.dtype, device: Any, make: Callable[[], Tensor],
        causal: Causal | None, padding_BK: Tensor | None,
    ) -> LateMask:  # fmt: skip
        late: LateMask = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        late.make, late.made, late.causal, late.padding_BK = make, None, causal, padding_BK
        return late

    def __init__(self, *args: Any) -> None:
        super().__init__()

    def ordinary(self) -> Tensor:
        """The mask with its numbers; always the same tensor, since the caller may write into it."""
        if self.made is None:
            self.made, self.causal, self.padding_BK = self.make(), None, None
        return self.made

    def __deepcopy__(self, memo: Any) -> Tensor:
        return self.ordinary().clone()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"LateMask({tuple(self.shape)}, causal={self.causal is not None})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = tree_map(lambda x: x.ordinary() if isinstance(x, LateMask) else x, (args, kwargs or {}))
        return func(*made[0], **made[1])


def late_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    **kwargs: Any,
) -> Tensor | None:
    """The mask function that transformers calls, with the keyword arguments of `eager_mask`.

    Returns a LateMask where the mask is simply causal or simply padding, and the mask of eager attention otherwise. Keys of a
    prefix come first.
    """
    prefix = prefix_length(kwargs.get("config"))

    def make() -> Any:
        words = {"mask_function": mask_function, "attention_mask": attention_mask, **kwargs}
        made = eager_mask(batch_size, q_length, kv_length, **words)
        return _with_prefix(made, prefix, attention_mask, kwargs) if prefix and made is not None else made

    q_offset, kv_offset = kwargs.get("q_offset", 0), kwargs.get("kv_offset", 0)
    device: torch.device | str = kwargs.get("device", "cpu")
    plain = mask_function is causal_mask_function or mask_function is bidirectional_mask_function
    known = isinstance(q_offset, int) and isinstance(kv_offset, int) and kv_offset == 0
    readable = attention_mask is None or (attention_mask.dim() == 2 and attention_mask.shape == (batch_size, kv_length))
    late = (
        q_length > 1
        and not kwargs.get("use_vmap")
        and torch.device(device).type != "meta"
        and not (torch.compiler.is_compiling() or traced())
    )
    if not (plain and known and readable and late):
        made: Tensor | None = make()
        return made
    padding_BK = None if attention_mask is None or bool(attention_mask.all()) else attention_mask.to(device, torch.bool)
    if prefix and padding_BK is not None:
        padding_BK = torch.nn.functional.pad(padding_BK, (prefix, 0), value=True)
    causal = None
    if mask_function is causal_mask_function:
        causal = Causal(q_length, prefix + kv_length, prefix + q_offset, padding_BK, device)
    elif padding_BK is None:
        empty: Tensor | None = make()  # no key is hidden: transformers decides whether to return a mask at all
        return empty
    shape, dtype = (batch_size, 1, q_length, prefix + kv_length), kwargs.get("dtype", torch.float32)
    return LateMask(shape, dtype, device, make, causal, padding_BK)


def prefix_length(config: object) -> int:
    """The number of prefix tokens in front of every sequence, as the config of a model or of its part records it."""
    carried = getattr(config, "quantization_config", None)
    section = carried.section.get("prefix") if isinstance(carried, RecordedChanges) else None
    return len(section["tokens"]) if section else 0


def _with_prefix(mask_B1QK: Tensor, prefix: int, attention_mask: Tensor | None, how: dict[str, Any]) -> Tensor:
    """The additive mask with the prefix in front; in a sliding window it slides out as any other token does."""
    n_batch, _, n_queries, _ = mask_B1QK.shape
    device = mask_B1QK.device
    columns_B1QP = torch.zeros(n_batch, 1, n_queries, prefix, dtype=mask_B1QK.dtype, device=device)
    window = how.get("local_size")
    if window is not None:
        place_BQ = (torch.arange(n_queries, device=device) + how.get("q_offset", 0))[None]
        if attention_mask is not None and attention_mask.dim() == 2:
            # The prefix is in front of the text, not of the padding to its left.
            place_BQ = place_BQ - (attention_mask.to(device).cumsum(-1) == 0).sum(-1, keepdim=True)
        place_P = torch.arange(-prefix, 0, device=device)
        hidden_BQP = place_P <= place_BQ[..., None] - window
        columns_B1QP = columns_B1QP.masked_fill(hidden_BQP[:, None], torch.finfo(mask_B1QK.dtype).min)
    return torch.cat([columns_B1QP, mask_B1QK], -1)


def traced() -> bool:
    """Whether torch is recording a graph (JIT tracing or ONNX export), which must consist of standard operations."""
    return torch._C._get_tracing_state() is not None or torch.onnx.is_in_onnx_export()
