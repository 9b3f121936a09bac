"""The attention of one layer: scores -> mask -> normalizer -> dropout -> values -> gate, with a tap at every stage.

A gate of values comes before all of it: the values that are summed are the gated ones.
"""

# B batch, H heads, G key/value heads, Q queries, K keys, D features per head, d input features

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from quietformer.attention.call_settings import CoreOptions, FusedOptions
from quietformer.attention.kernels.fused import Beside, fused_attention, triton_takes
from quietformer.attention.masks import AnyMask, Causal, LateMask, read_mask, traced
from quietformer.attention.normalizers.base import Normalizer
from quietformer.attention.prefix import Prefix
from quietformer.config.attention import AttentionSpec, HeadGeometry
from quietformer.errors import QuietformerWarning, UnsupportedModelError

TAPS = ("query", "key", "value", "scores", "probabilities", "gate", "context")

_plain: ContextVar[bool] = ContextVar("plain_attention", default=False)


@dataclass
class LayerCall:
    """What the core needs to know about the current call of its layer and does not get from the attention interface."""

    inputs: Tensor | None
    cached: bool = False  # whether a key/value cache is in use
    cross_length: int | None = None  # the number of encoder states, in cross-attention
    weights: bool = True  # whether the caller wants the probabilities
    read: int = 0  # number of tokens whose gates were computed, for layers that attend chunk by chunk


class Tap(nn.Module):
    """Base class of modules that replace the identity at a stage of the core to change its tensor, such as a quantizer."""


class AttentionCore(nn.Module):
    """The attention of one layer, as its spec describes it."""

    def __init__(self, spec: AttentionSpec, geometry: HeadGeometry, input_name: str = "hidden_states") -> None:
        super().__init__()
        self.spec = spec
        self.geometry = geometry
        self.input_name = input_name
        self.normalizer: Normalizer = spec.normalizer.build(geometry)
        # Not "gate": transformers renames parameters of this name when it loads some mixture-of-experts models.
        self.gating = None if spec.gate is None else spec.gate.build(geometry)
        self.prefix: Prefix | None = None
        # Identities without state: recorders hook them, quantizers replace them.
        self.taps = nn.ModuleDict({name: nn.Identity() for name in TAPS})
        self._calls: dict[int, LayerCall] = {}

    def begin(self, call: LayerCall) -> None:
        """Start a call of the layer; until `end`, calls of the core in this thread belong to it."""
        self._calls[_thread()] = call

    def end(self) -> None:
        """Finish the call of the layer and release its input."""
        call = self._calls.pop(_thread(), None)
        if call is not None and call.read and call.inputs is not None and call.read != _tokens(call.inputs):
            raise UnsupportedModelError(
                f"gates were computed for {call.read} of {_tokens(call.inputs)} tokens of a layer; "
                "use AttentionSpec(gate=None) for this model"
            )

    def weights_asked(self) -> bool:
        """Whether the current call wants the probabilities; True if the core was called without its layer."""
        call = self._calls.get(_thread())
        return call is None or call.weights

    def forward(
        self,
        query_BHQD: Tensor,
        key_BGKD: Tensor,
        value_BGKD: Tensor,
        mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        options: CoreOptions = CoreOptions(),
    ) -> tuple[Tensor, Tensor | None]:
        """The context (B, Q, H, D) and the probabilities (B, H, Q, K); None instead of probabilities nobody wants.

        The mask and the position bias broadcast over (B, H, Q, K).
        """
        self._check_shapes(query_BHQD, key_BGKD)
        call = self._calls.get(_thread())
        if call is not None and call.cached and query_BHQD.shape[-2] < key_BGKD.shape[-2] != call.cross_length:
            self.normalizer.check_cache()
        value_BGKD = self._gated_values(value_BGKD)
        if self.prefix is not None:
            if position_bias is not None:
                raise UnsupportedModelError(
                    "a layer with a position bias cannot have a prefix; open the model without it"
                )
            mask = self.prefix.seen_by(mask, key_BGKD.shape[-2])
            key_BGKD, value_BGKD = self.prefix.before(key_BGKD, value_BGKD)
        query_BHQD = self.taps["query"](query_BHQD)
        key_BGKD, value_BGKD = self.taps["key"](key_BGKD), self.taps["value"](value_BGKD)
        scaling = query_BHQD.shape[-1] ** -0.5 if options.scaling is None else options.scaling  # OPT passes 1.0
        dropout = options.dropout if self.training else 0.0
        fused = FusedOptions(scaling, dropout) if not options.weights and options.softcap is None else None
        if fused is not None and self._unwatched("row_weights"):
            beside = Beside(mask, position_bias)
            context_BQHD = self._in_one_kernel((query_BHQD, key_BGKD, value_BGKD), beside, fused, call)
            if context_BQHD is not None:
                return context_BQHD, None
        key_BHKD, value_BHKD = (repeat_heads(x, query_BHQD.shape[1]) for x in (key_BGKD, value_BGKD))
        if fused is not None and self._unwatched("attend"):
            context_BHQD = self._without_weights(query_BHQD, key_BHKD, value_BHKD, mask, position_bias, fused)
            if context_BHQD is not None:
                return self._gated(context_BHQD.transpose(1, 2), call), None
        scores_BHQK = torch.matmul(query_BHQD, key_BHKD.transpose(-1, -2)) * scaling
        if options.softcap is not None:
            scores_BHQK = torch.tanh(scores_BHQK / options.softcap) * options.softcap
        scores_BHQK = self.taps["scores"](scores_BHQK)
        scores_BHQK, visible = apply_mask(scores_BHQK, mask, position_bias)

        probs_BHQK = self.taps["probabilities"](self.normalizer(scores_BHQK, visible).to(query_BHQD.dtype))
        dropped_BHQK = nn.functional.dropout(probs_BHQK, p=dropout)
        return self._gated(torch.matmul(dropped_BHQK, value_BHKD).transpose(1, 2), call), probs_BHQK

    def _unwatched(self, way: str) -> bool:
        """Whether only the context leaves the core, so that the normalizer's other way to it may be taken.

        No recorder or quantizer needs scores or probabilities.
        """
        if _spelled_out() or not _has_own(way, type(self.normalizer)) or "forward" in vars(self.normalizer):
            return False
        taps: list[nn.Module] = [self.taps["scores"], self.taps["probabilities"]]
        return all(type(tap) is nn.Identity for tap in taps) and not any(
            module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
            for module in (*taps, self.normalizer)
        )

    def _in_one_kernel(
        self, tensors: tuple[Tensor, Tensor, Tensor], beside: Beside, options: FusedOptions, call: LayerCall | None
    ) -> Tensor | None:
        """The context (B, Q, H, D) with its gates from the Triton kernels; None where they cannot compute it."""
        query_BHQD, key_BGKD, value_BGKD = tensors
        key_BGKD = repeat_heads(key_BGKD, value_BGKD.shape[1])  # gated values are those of all heads
        if not triton_takes(query_BHQD, key_BGKD, value_BGKD, beside):
            return None
        n_keys = key_BGKD.shape[2]
        assert not isinstance(beside.mask, Causal)
        merged = merge_masks(beside.mask, None, n_keys, query_BHQD.dtype)
        weights = self.normalizer.row_weights(merged, n_keys, query_BHQD.dtype)
        if weights is None:
            return None
        gate_BQHD = None
        # A quantizer in the place of the tap may pass gradients to gates that it makes zero; the kernels pass none.
        fused_gate = self.gating is not None and not self.gating.of_values and type(self.taps["gate"]) is nn.Identity
        if fused_gate:
            gate_BQHD = self.taps["gate"](self._gate_for((query_BHQD.shape[0], query_BHQD.shape[2]), call))
        beside = Beside(merged, beside.bias, gate_BQHD)
        context_BQHD = fused_attention(query_BHQD, key_BGKD, value_BGKD, beside, weights, options)
        if not fused_gate:
            return self._gated(context_BQHD, call)
        context: Tensor = self.taps["context"](context_BQHD)
        return context

    def _without_weights(
        self,
        query_BHQD: Tensor,
        key_BHKD: Tensor,
        value_BHKD: Tensor,
        mask: Tensor | None,
        position_bias: Tensor | None,
        options: FusedOptions,
    ) -> Tensor | None:
        """The context (B, H, Q, D), computed without storing the weights; None where this is not possible."""
        merged = merge_masks(mask, position_bias, key_BHKD.shape[-2], query_BHQD.dtype)
        if isinstance(merged, Tensor) and merged.requires_grad and torch.is_grad_enabled():
            return None  # a learned position bias: the fused kernels give a mask no gradient
        return self.normalizer.attend(query_BHQD, key_BHKD, value_BHKD, merged, options)

    def _gated_values(self, value_BGKD: Tensor) -> Tensor:
        """The values, scaled for each head if the gates are of values."""
        if self.gating is None or not self.gating.of_values:
            return value_BGKD
        self._tell_frozen_gates()
        value_BHKD = repeat_heads(value_BGKD, self.geometry.n_heads)
        pi = self.taps["gate"](self.gating(value_BHKD))
        gated_BHKD: Tensor = (value_BHKD * pi).to(value_BHKD.dtype)
        return gated_BHKD

    def _gated(self, context_BQHD: Tensor, call: LayerCall | None) -> Tensor:
        if self.gating is not None and not self.gating.of_values:
            pi = self.taps["gate"](self._gate_for((context_BQHD.shape[0], context_BQHD.shape[1]), call))
            context_BQHD = (context_BQHD * pi).to(context_BQHD.dtype)
        context: Tensor = self.taps["context"](context_BQHD.contiguous())
        return context

    def _gate_for(self, sizes: tuple[int, int], call: LayerCall | None) -> Tensor:
        """The gates of this call's sequences and queries, computed from the layer's input."""
        assert self.gating is not None
        if call is None or call.inputs is None:
            raise UnsupportedModelError(
                "the attention of a gated layer was called without its layer, so the gate has no input; "
                "use AttentionSpec(gate=None) for this model"
            )
        inputs, (n_batch, n_queries) = call.inputs, sizes
        if n_batch == 1 and n_queries < _tokens(inputs):
            # Packed sequences attend chunk by chunk: one call per chunk, in order.
            first, call.read = call.read, call.read + n_queries
            inputs = inputs.reshape(1, _tokens(inputs), -1)[:, first : first + n_queries]
        elif _tokens(inputs) == n_batch * n_queries:
            # Images have the shape (batch, height, width, d), image regions two batch dimensions.
            inputs = inputs.reshape(n_batch, n_queries, -1)
        if inputs.shape != (n_batch, n_queries, self.geometry.d_model):
            raise UnsupportedModelError(
                f"a gate needs a layer input of shape (batch, queries, {self.geometry.d_model}), but this layer got "
                f"{tuple(call.inputs.shape)} for an output of {sizes[0]} x {sizes[1]} tokens; "
                "use AttentionSpec(gate=None) for this model"
            )
        self._tell_frozen_gates()
        gate: Tensor = self.gating(inputs)
        return gate

    def _tell_frozen_gates(self) -> None:
        """Whatever freezes a model to train something beside it, as LoRA does, freezes the gates too."""
        assert self.gating is not None
        if not self.training or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return
        if not any(parameter.requires_grad for parameter in self.gating.parameters()):
            warnings.warn(
                "the gates of this model are frozen, so training leaves them as they are; with PEFT, pass "
                "modules_to_save=['gating'] to the adapter's config, else set requires_grad on their parameters",
                QuietformerWarning,
                stacklevel=2,
            )

    def _check_shapes(self, query: Tensor, key: Tensor) -> None:
        if query.dim() != 4 or key.dim() != 4 or query.shape[1] != self.geometry.n_heads:
            raise UnsupportedModelError(
                f"expected queries (batch, {self.geometry.n_heads} heads, length, features), "
                f"got {tuple(query.shape)}; the attention of this layer cannot be replaced"
            )

    def extra_repr(self) -> str:
        return self.spec.label


def repeat_heads(grouped_BGKD: Tensor, n_heads: int) -> Tensor:
    """Grouped-query attention: repeat each key/value head for its n_heads / G query heads."""
    groups = grouped_BGKD.shape[1]
    return grouped_BGKD if groups == n_heads else grouped_BGKD.repeat_interleave(n_heads // groups, dim=1)


def merge_masks(mask: Tensor | None, position_bias: Tensor | None, n_keys: int, dtype: torch.dtype) -> AnyMask:
    """The mask and the position bias as one mask; a causal mask without bias stays a description of itself."""
    if isinstance(mask, LateMask) and mask.shape[-1] == n_keys:
        if mask.causal is not None and position_bias is None:
            return mask.causal
        if mask.causal is None and mask.padding_BK is not None:
            mask = mask.padding_BK[:, None, None]
    if position_bias is not None:
        bias, _ = read_mask(mask, n_keys, dtype)
        mask = position_bias if bias is None else position_bias + bias
    return None if mask is None else mask[..., :n_keys]  # a static cache makes the mask longer than the keys


def apply_mask(scores_BHQK: Tensor, mask: Tensor | None, position_bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The scores with both biases added, in float32 or wider, and the visible keys (None: all)."""
    if position_bias is not None:
        scores_BHQK = scores_BHQK + position_bias
    bias, visible = read_mask(mask, scores_BHQK.shape[-1], scores_BHQK.dtype)
    if bias is None or visible is None:
        return scores_BHQK, None
    masked_BHQK = scores_BHQK.to(bias.dtype) + bias
    if scores_BHQK.dtype == torch.float16:
        # Scores may have overflowed, and infinity plus a finite bias is still infinity: overwrite the hidden ones.
        return masked_BHQK.masked_fill(~visible, torch.finfo(bias.dtype).min), visible
    return masked_BHQK, visible


@contextlib.contextmanager
def plain_attention() -> Iterator[None]:
    """Make every core compute its weights with ordinary operations: for comparison, or for second derivatives.

    Holds for this thread, and not for graphs that torch.compile has already compiled. With gradient checkpointing, run the
    backward pass inside the context as well.
    """
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)


def _has_own(way: str, cls: type) -> bool:
    """Whether the class that defines the weights also defines this other way to the context.

    A subclass with other weights must not inherit it.
    """
    for base in cls.__mro__:
        if "forward" in vars(base):
            return way in vars(base) and base is not Normalizer
    return False


def _spelled_out() -> bool:
    """Whether the core must use ordinary operations: inside `plain_attention`, in a traced graph, under torch.func."""
    if torch.compiler.is_compiling():
        return torch.compiler.is_exporting()
    # torch.func and forward-mode derivatives do not support our autograd.Function.
    transformed = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    return _plain.get() or traced() or transformed


def _thread() -> int:
    """The current thread: a model may serve several at once. Compiled graphs cannot ask, so they share one number."""
    return 0 if torch.compiler.is_compiling() else threading.get_ident()


def _tokens(inputs: Tensor) -> int:
    return inputs.numel() // inputs.shape[-1]
