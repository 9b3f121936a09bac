"""Attention through the Triton kernels, where they can run: on CUDA with Triton installed.

This module does not import Triton; the modules whose names start with it do, on the first call.
"""

# B batch, H heads, G key/value heads, Q queries, K keys, D features per head

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from quietformer.attention.call_settings import FusedOptions
from quietformer.attention.kernels.row_weights import RowWeights
from quietformer.attention.masks import AnyMask, split_mask

WIDEST = 256
"""Features per head of the widest tile."""

LEAST_CAPABILITY = 8
"""The kernels are compiled for Ampere and later GPUs."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

LEAST_TRITON = (3, 7)
"""Earlier versions were not tried."""


def _version(package: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version(package))[:2])


# Read once, since a compiled graph cannot ask.
_INSTALLED = find_spec("triton") is not None and _version("triton") >= LEAST_TRITON
_INTERPRETED = _INSTALLED and os.environ.get("TRITON_INTERPRET") == "1"


@dataclass(frozen=True)
class Beside:
    """What an attention call has beside queries, keys and values."""

    mask: AnyMask = None  # broadcasts over (B, H, Q, K)
    bias: Tensor | None = None  # added to the scores; it broadcasts over (B, H, Q, K) and may learn
    gate: Tensor | None = None  # multiplies the context (B, Q, H, D or 1); a gate of exactly zero gets no gradient


def triton_takes(query_BHQD: Tensor, key_BGKD: Tensor, value_BGKD: Tensor, beside: Beside) -> bool:
    """Whether the kernels can compute this call and are worth it: a single query is better served by a product."""
    n_batch, n_heads, n_queries, width = query_BHQD.shape
    shape, tensors = value_BGKD.shape[:3], (query_BHQD, key_BGKD, value_BGKD)
    whole = (n_batch, n_heads, n_queries, shape[2])
    return (
        n_queries > 1
        and key_BGKD.shape[:3] == shape
        and shape[0] == n_batch
        and shape[2] > 0
        and n_heads % max(shape[1], 1) == 0
        and key_BGKD.shape[3] == width
        and max(width, value_BGKD.shape[3]) <= WIDEST
        and all(x.dtype in DTYPES and _ordinary(x) for x in tensors)
        and not _learns(beside.mask)
        and _broadcasts(beside.mask, whole)
        and _broadcasts(beside.bias, whole)
        and runs_on(query_BHQD.device)
    )


def _ordinary(x: Tensor) -> bool:
    """Whether a tensor is not of a kind that the operator does not know, such as one spread over machines."""
    return torch.compiler.is_compiling() or type(x) in (Tensor, nn.Parameter)


def _learns(mask: AnyMask) -> bool:
    return isinstance(mask, Tensor) and mask.requires_grad and torch.is_grad_enabled()


def _broadcasts(x: AnyMask, whole: tuple[int, ...]) -> bool:
    """Whether a tensor can be read as one of (B, H, Q, K). A mask may be longer than the keys."""
    if not isinstance(x, Tensor):
        return True
    sizes = (*x.shape[:-1], min(x.shape[-1], whole[-1])) if x.dim() else ()
    return len(sizes) <= 4 and all(
        size in (1, full) for size, full in zip(reversed(sizes), reversed(whole), strict=False)
    )


def runs_on(device: torch.device) -> bool:
    """Whether Triton is installed and runs on this device; on a CPU only in its interpreter (TRITON_INTERPRET=1)."""
    if device.type == "cpu":
        return _INTERPRETED
    if device.type != "cuda" or not _INSTALLED or torch.version.hip is not None:
        return False
    return bool(torch.cuda.get_device_properties(device).major >= LEAST_CAPABILITY)


def fused_attention(
    query_BHQD: Tensor,
    key_BGKD: Tensor,
    value_BGKD: Tensor,
    beside: Beside,
    weights: RowWeights,
    options: FusedOptions,
) -> Tensor:
    """The context (B, Q, H, D)."""
    from quietformer.attention.kernels.triton_launch import Call
    from quietformer.attention.kernels.triton_ops import row_attention

    device, dtype = query_BHQD.device, query_BHQD.dtype
    inner = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else dtype
    inner = inner if inner in DTYPES else dtype
    sink = weights.sink
    if isinstance(sink, float):
        sink = torch.full((query_BHQD.shape[1],), sink, device=device)
    low = weights.low if isinstance(weights.low, Tensor) else torch.full((1, 1, 1, 1), weights.low, device=device)
    mask, causal = split_mask(beside.mask)
    context = row_attention(
        Call(
            query=query_BHQD.to(inner),
            key=key_BGKD.to(inner),
            value=value_BGKD.to(inner),
            low=low.to(device, torch.float32),
            sink=sink,
            mask=mask,
            bias=beside.bias,
            padding=None if causal is None else causal.padding_BK,
            gate=_whole_gate(beside.gate, weights.factor, query_BHQD),
            # Drawn on the device, so that checkpointing restores it and nothing waits for the GPU.
            seed=torch.randint(2**62, (1,), device=device) if options.dropout else None,
            kind=weights.kind,
            numbers=[options.scaling, weights.zeta, options.dropout],
            span=[] if causal is None else [causal.offset],
        )
    )
    return context.to(dtype)


def _whole_gate(gate_BQHD: Tensor | None, factor_BHQ1: Tensor | None, query_BHQD: Tensor) -> Tensor | None:
    """The gate times the factor of rows, with the sizes (B, Q, H) in full."""
    if factor_BHQ1 is not None:
        factor = factor_BHQ1.transpose(1, 2)
        gate_BQHD = factor if gate_BQHD is None else gate_BQHD * factor
    if gate_BQHD is None:
        return None
    n_batch, n_heads, n_queries, _ = query_BHQD.shape
    return gate_BQHD.expand(n_batch, n_queries, n_heads, gate_BQHD.shape[-1])
