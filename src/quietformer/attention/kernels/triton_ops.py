"""Attention by rows as torch operators, which torch.compile, FSDP and checkpointing take as they take torch's own.

- `quietformer::row_attention` gives the context (B, Q, H, D) and the logarithms of the denominators (B, H, Q). Only the
  context has a gradient; what the denominators contribute to it is part of the backward pass.
- `quietformer::row_attention_backward` gives the gradients. It has no gradient of its own.
"""

# B batch, H heads, Q queries, K keys, D features per head

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quietformer.attention.kernels.triton_launch import Call, run_backward, run_forward

# Kept alive in a global: the operators vanish with this object.
_LIBRARY: Any = torch.library.Library("quietformer", "FRAGMENT")  # type: ignore[no-untyped-call]

_TENSORS = len(("query", "key", "value", "low", "sink", "mask", "bias", "padding", "gate", "seed"))
_GIVEN = (
    "Tensor query, Tensor key, Tensor value, Tensor low, Tensor? sink, Tensor? mask, Tensor? bias, Tensor? padding, "
    "Tensor? gate, Tensor? seed, str kind, float[] numbers, SymInt[] span"
)

_LIBRARY.define(f"row_attention({_GIVEN}) -> (Tensor, Tensor)")
_LIBRARY.define(f"row_attention_backward(Tensor context, Tensor lse, Tensor grad, bool[] wanted, {_GIVEN}) -> Tensor[]")


def row_attention(call: Call) -> Tensor:
    """The context (B, Q, H, D)."""
    context: Tensor = torch.ops.quietformer.row_attention.default(*call)[0]
    return context


def _forward(*given: Any) -> tuple[Tensor, Tensor]:
    return run_forward(Call(*given))


def _forward_fake(*given: Any) -> tuple[Tensor, Tensor]:
    call = Call(*given)
    n_batch, n_heads, n_queries, _ = call.sizes
    context = call.query.new_empty(n_batch, n_queries, n_heads, call.value.shape[-1])
    return context, call.query.new_empty((n_batch, n_heads, n_queries), dtype=torch.float32)


def _backward(context: Tensor, lse: Tensor, grad: Tensor, wanted: list[bool], *given: Any) -> list[Tensor]:
    return run_backward(Call(*given), (context, lse, grad), wanted)


def _backward_fake(context: Tensor, lse: Tensor, grad: Tensor, wanted: list[bool], *given: Any) -> list[Tensor]:
    call = Call(*given)
    always = [x.new_empty(x.shape) for x in (call.query, call.key, call.value)]
    others = zip(wanted, (call.sink, call.bias, call.gate), strict=True)
    return always + [x.new_empty(x.shape) if asked and x is not None else grad.new_empty(0) for asked, x in others]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:_TENSORS], *output)
    ctx.rest = inputs[_TENSORS:]
    ctx.wanted = [x is not None and x.requires_grad for x in (inputs[4], inputs[6], inputs[8])]


def _gradients(ctx: Any, grad_context: Tensor, grad_lse: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, context, lse = ctx.saved_tensors
    found = torch.ops.quietformer.row_attention_backward.default(
        context, lse, grad_context, ctx.wanted, *tensors, *ctx.rest
    )
    sink, bias, gate = (x if asked else None for x, asked in zip(found[3:], ctx.wanted, strict=True))
    return *found[:3], None, sink, None, bias, None, gate, None, None, None, None


def _no_second_derivative(ctx: Any, *grads: Any) -> Any:
    raise RuntimeError("fused attention has no second derivative; use quietformer.attention.core.plain_attention()")


for _name, _function, _fake in (
    ("row_attention", _forward, _forward_fake),
    ("row_attention_backward", _backward, _backward_fake),
):
    _LIBRARY.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"quietformer::{_name}", _fake, lib=_LIBRARY)

torch.library.register_autograd("quietformer::row_attention", _gradients, setup_context=_save, lib=_LIBRARY)
torch.library.register_autograd("quietformer::row_attention_backward", _no_second_derivative, lib=_LIBRARY)
