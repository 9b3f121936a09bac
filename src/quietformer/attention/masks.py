"""Masks that are not made until something looks at them: T x T numbers would be most of a long sequence's memory.

transformers asks for a mask once and hands it to every layer. What it gets here has the shape and dtype of the mask that eager
attention would get, and turns into it in any operation; our own attention asks what it means instead.
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

HIDDEN_BELOW = -9e3
"""An additive mask at or below this hides the key: masks use -1e4 (-9984 in bfloat16), -1e9, -inf or a dtype's minimum."""


def read_mask(mask: Tensor | None, n_keys: int, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    """What a mask adds to the scores, in float32 or wider, and which keys are visible; both broadcast over (B, H, Q, K)."""
    if mask is None:
        return None, None
    dtype = accumulation_dtype(dtype)
    mask = mask[..., :n_keys]  # a static cache makes the mask longer than the keys
    visible = visible_keys(mask)
    bias = torch.zeros((), dtype=dtype, device=mask.device) if mask.dtype == torch.bool else mask.to(dtype)
    # The lowest number, not -inf: a row without visible keys would become NaN, in the gradient even where the output is
    # overwritten. Filled into the mask, which has no heads: an addition is then the cheapest thing to do to scores.
    return torch.where(visible, bias, torch.finfo(dtype).min), visible


def visible_keys(mask: Tensor) -> Tensor:
    return mask if mask.dtype == torch.bool else mask > HIDDEN_BELOW


@dataclass(frozen=True)
class Causal:
    """Query q sees keys up to q + offset, of these only what is no padding."""

    n_queries: int
    n_keys: int
    offset: int = 0
    padding_BK: Tensor | None = None  # True where a key is no padding
    device: torch.device | str = "cpu"

    def visible(self, sequence: slice, rows: slice, keys: slice) -> Tensor:
        """(b or 1, 1, r, k) of it."""
        queries = torch.arange(rows.start, rows.stop, device=self.device)[:, None] + self.offset
        seen = (torch.arange(keys.start, keys.stop, device=self.device) <= queries)[None, None]
        return seen if self.padding_BK is None else seen & self.padding_BK[sequence, None, None, keys]

    def whole(self) -> Tensor:
        return self.visible(slice(None), slice(0, self.n_queries), slice(0, self.n_keys))

    def count(self, by: Literal["sequence", "row"]) -> Tensor | int:
        """How many keys there are: of the sequence, those that any query sees, or of each query's row, (b or 1, 1, Q, 1)."""
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


class LateMask(Tensor):
    """A mask in its shape and dtype, without its numbers; once something has looked at them it is an ordinary mask."""

    make: Callable[[], Tensor]
    made: Tensor | None
    causal: Causal | None  # or every query sees all that is no padding
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
        """The mask with its numbers, from now on the same tensor every time: somebody may write into it."""
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
    q_offset: int | Tensor = 0,
    kv_offset: int | Tensor = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> Tensor | None:
    """What transformers calls for a mask: late where its meaning is plainly causal or padding alone, else eager's at once."""

    asked: dict[str, Any] = {
        "batch_size": batch_size, "q_length": q_length, "kv_length": kv_length, "q_offset": q_offset,
        "kv_offset": kv_offset, "mask_function": mask_function, "attention_mask": attention_mask, "dtype": dtype,
        "device": device, **kwargs,
    }  # fmt: skip

    def make() -> Any:
        return eager_mask(**asked)

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
    causal = None
    if mask_function is causal_mask_function:
        assert isinstance(q_offset, int)
        causal = Causal(q_length, kv_length, q_offset, padding_BK, device)
    elif padding_BK is None:
        empty: Tensor | None = make()  # nothing is hidden: transformers decides whether that is a mask
        return empty
    return LateMask((batch_size, 1, q_length, kv_length), dtype, device, make, causal, padding_BK)


def traced() -> bool:
    """Whether a graph is recorded for use elsewhere, of operations that are known there."""
    return torch._C._get_tracing_state() is not None or torch.onnx.is_in_onnx_export()
