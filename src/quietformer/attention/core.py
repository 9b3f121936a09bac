"""The one seam: scores -> mask -> normalizer -> dropout -> values -> gate, each stage open to a tap."""

# B batch, H heads, G key/value heads, Q queries, K keys, D features of a head, d input features

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from quietformer.attention.masks import LateMask, read_mask, traced
from quietformer.attention.normalizers.base import Normalizer
from quietformer.config.attention import AttentionSpec, HeadGeometry
from quietformer.errors import UnsupportedModelError

TAPS = ("query", "key", "value", "scores", "probabilities", "gate", "context")

_plain: ContextVar[bool] = ContextVar("plain_attention", default=False)


@dataclass
class LayerCall:
    """What the core must know of the call of its layer that is under way, and is not passed by the interface."""

    inputs: Tensor | None
    cached: bool = False  # a key/value cache is in use
    cross_length: int | None = None  # how many encoder states the layer looks at, if it does
    weights: bool = True  # the probabilities are asked for
    read: int = 0  # tokens whose gates were given out, for layers that attend chunk by chunk


class Tap(nn.Module):
    """What stands in a tensor's way to act on it, as a quantizer does; where nothing acts, an identity stands."""


class AttentionCore(nn.Module):
    """Attention of one layer as its spec describes it."""

    def __init__(self, spec: AttentionSpec, geometry: HeadGeometry, input_name: str = "hidden_states") -> None:
        super().__init__()
        self.spec = spec
        self.geometry = geometry
        self.input_name = input_name
        self.normalizer: Normalizer = spec.normalizer.build(geometry)
        # Not "gate": loading some mixtures of experts renames whatever is called so.
        self.gating = None if spec.gate is None else spec.gate.build(geometry)
        # Identities without state: recorders hook them, quantizers take their place.
        self.taps = nn.ModuleDict({name: nn.Identity() for name in TAPS})
        self._calls: dict[int, LayerCall] = {}

    def begin(self, call: LayerCall) -> None:
        """The layer is called; until `end`, calls of the core in this thread belong to it."""
        self._calls[_thread()] = call

    def end(self) -> None:
        """The layer is done: forget its input."""
        call = self._calls.pop(_thread(), None)
        if call is not None and call.read and call.inputs is not None and call.read != _tokens(call.inputs):
            raise UnsupportedModelError(
                f"gates were asked for {call.read} of {_tokens(call.inputs)} tokens of a layer; use no gate here"
            )

    def weights_asked(self) -> bool:
        """Whether the call under way wants the probabilities; of a call past the layer nothing is known."""
        call = self._calls.get(_thread())
        return call is None or call.weights

    def forward(
        self,
        query_BHQD: Tensor,
        key_BGKD: Tensor,
        value_BGKD: Tensor,
        mask: Tensor | None = None,
        *,
        scaling: float | None = None,
        dropout: float = 0.0,
        softcap: float | None = None,
        position_bias: Tensor | None = None,
        weights: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        """The context (B, Q, H, D) and the probabilities (B, H, Q, K), or none if they are not asked for."""
        self._check_shapes(query_BHQD, key_BGKD)
        call = self._calls.get(_thread())
        if call is not None and call.cached and query_BHQD.shape[-2] < key_BGKD.shape[-2] != call.cross_length:
            self.normalizer.check_cache()
        query_BHQD = self.taps["query"](query_BHQD)
        key_BHKD = repeat_heads(self.taps["key"](key_BGKD), query_BHQD.shape[1])
        value_BHKD = repeat_heads(self.taps["value"](value_BGKD), query_BHQD.shape[1])

        scaling = query_BHQD.shape[-1] ** -0.5 if scaling is None else scaling  # OPT passes 1.0
        dropout = dropout if self.training else 0.0
        if not weights and softcap is None and self._unwatched():
            context_BHQD = self._without_weights(
                query_BHQD, key_BHKD, value_BHKD, mask, position_bias, scaling=scaling, dropout=dropout
            )
            if context_BHQD is not None:
                return self._gated(context_BHQD.transpose(1, 2), call), None
        scores_BHQK = torch.matmul(query_BHQD, key_BHKD.transpose(-1, -2)) * scaling
        if softcap is not None:
            scores_BHQK = torch.tanh(scores_BHQK / softcap) * softcap
        scores_BHQK = self.taps["scores"](scores_BHQK)
        scores_BHQK, visible = apply_mask(scores_BHQK, mask, position_bias)

        probs_BHQK = self.taps["probabilities"](self.normalizer(scores_BHQK, visible).to(query_BHQD.dtype))
        dropped_BHQK = nn.functional.dropout(probs_BHQK, p=dropout)
        return self._gated(torch.matmul(dropped_BHQK, value_BHKD).transpose(1, 2), call), probs_BHQK

    def _unwatched(self) -> bool:
        """Whether nothing but the context leaves the core: no recorder or quantizer wants scores or probabilities."""
        if _spelled_out() or not _has_own_attend(type(self.normalizer)) or "forward" in vars(self.normalizer):
            return False
        taps: list[nn.Module] = [self.taps["scores"], self.taps["probabilities"]]
        return all(type(tap) is nn.Identity for tap in taps) and not any(
            module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
            for module in (*taps, self.normalizer)
        )

    def _without_weights(
        self,
        query_BHQD: Tensor,
        key_BHKD: Tensor,
        value_BHKD: Tensor,
        mask: Tensor | None,
        position_bias: Tensor | None,
        *,
        scaling: float,
        dropout: float,
    ) -> Tensor | None:
        causal = None
        if isinstance(mask, LateMask) and mask.shape[-1] == key_BHKD.shape[-2]:
            causal = mask.causal if position_bias is None else None
            if mask.causal is None and mask.padding_BK is not None:
                mask = mask.padding_BK[:, None, None]
        if causal is not None:
            mask = None
        elif position_bias is not None:
            bias, _ = read_mask(mask, key_BHKD.shape[-2], query_BHQD.dtype)
            mask = position_bias if bias is None else position_bias + bias
        if mask is not None:
            mask = mask[..., : key_BHKD.shape[-2]]  # a static cache makes the mask longer than the keys
            if mask.requires_grad and torch.is_grad_enabled():
                return None
        return self.normalizer.attend(
            query_BHQD, key_BHKD, value_BHKD, scaling=scaling, mask=mask, causal=causal, dropout=dropout
        )

    def _gated(self, context_BQHD: Tensor, call: LayerCall | None) -> Tensor:
        if self.gating is not None:
            pi = self.taps["gate"](self._gate_for(context_BQHD, call))
            context_BQHD = (context_BQHD * pi).to(context_BQHD.dtype)
        context: Tensor = self.taps["context"](context_BQHD.contiguous())
        return context

    def _gate_for(self, context_BQHD: Tensor, call: LayerCall | None) -> Tensor:
        """Gates for the queries of this call, from the layer's input."""
        assert self.gating is not None
        if call is None or call.inputs is None:
            raise UnsupportedModelError(
                "a gated layer was called past its module, so its input is unknown; use no gate here"
            )
        inputs, (n_batch, n_queries) = call.inputs, context_BQHD.shape[:2]
        if n_batch == 1 and n_queries < _tokens(inputs):
            # Packed sequences attend chunk by chunk: one call for each, in order.
            first, call.read = call.read, call.read + n_queries
            inputs = inputs.reshape(1, _tokens(inputs), -1)[:, first : first + n_queries]
        elif _tokens(inputs) == n_batch * n_queries:
            # Images come as (batch, height, width, d), regions with two batch dimensions.
            inputs = inputs.reshape(n_batch, n_queries, -1)
        if inputs.shape != (n_batch, n_queries, self.geometry.d_model):
            raise UnsupportedModelError(
                f"gates read the layer's input as (batch, queries, {self.geometry.d_model}), but this layer got "
                f"{tuple(call.inputs.shape)} for an output of {tuple(context_BQHD.shape)}; use no gate here"
            )
        gate: Tensor = self.gating(inputs)
        return gate

    def _check_shapes(self, query: Tensor, key: Tensor) -> None:
        if query.dim() != 4 or key.dim() != 4 or query.shape[1] != self.geometry.n_heads:
            raise UnsupportedModelError(
                f"expected queries (batch, {self.geometry.n_heads} heads, length, features), "
                f"got {tuple(query.shape)}; this layer cannot take a replaced attention"
            )

    def extra_repr(self) -> str:
        return self.spec.label


def repeat_heads(grouped_BGKD: Tensor, n_heads: int) -> Tensor:
    """Grouped-query attention: each key/value head serves n_heads / G query heads."""
    groups = grouped_BGKD.shape[1]
    return grouped_BGKD if groups == n_heads else grouped_BGKD.repeat_interleave(n_heads // groups, dim=1)


def apply_mask(scores_BHQK: Tensor, mask: Tensor | None, position_bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Scores with biases added, in float32 or wider, and which keys are visible (None: all)."""
    if position_bias is not None:
        scores_BHQK = scores_BHQK + position_bias
    bias, visible = read_mask(mask, scores_BHQK.shape[-1], scores_BHQK.dtype)
    if bias is None or visible is None:
        return scores_BHQK, None
    masked_BHQK = scores_BHQK.to(bias.dtype) + bias
    if scores_BHQK.dtype == torch.float16:
        # A product may have overflowed: infinity plus the lowest number is still infinity, so hidden scores are overwritten.
        return masked_BHQK.masked_fill(~visible, torch.finfo(bias.dtype).min), visible
    return masked_BHQK, visible


@contextlib.contextmanager
def plain_attention() -> Iterator[None]:
    """Within it every core computes its weights one operation after the other: to compare with, or for second derivatives.

    For this thread, and not for what torch.compile has compiled; a checkpointed forward wants its backward within it too.
    """
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)


def _has_own_attend(cls: type) -> bool:
    """A subclass that changes how weights are made has lost the way to do without them."""
    for base in cls.__mro__:
        if "forward" in vars(base):
            return "attend" in vars(base) and base is not Normalizer
    return False


def _spelled_out() -> bool:
    """Whether somebody asked for single operations, or a graph is made of them for use elsewhere."""
    if torch.compiler.is_compiling():
        return torch.compiler.is_exporting()
    # Neither torch.func nor forward-mode derivatives know how to go through a function of our own.
    transformed = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    return _plain.get() or traced() or transformed


def _thread() -> int:
    """Models are served by several threads at once; a compiled graph knows only one."""
    return 0 if torch.compiler.is_compiling() else threading.get_ident()


def _tokens(inputs: Tensor) -> int:
    return inputs.numel() // inputs.shape[-1]
