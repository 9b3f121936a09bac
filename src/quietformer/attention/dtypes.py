"""The dtype in which attention is computed."""

from __future__ import annotations

import torch


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 for half-precision inputs, otherwise the input's own dtype (gradcheck needs float64)."""
    return torch.promote_types(dtype, torch.float32)
