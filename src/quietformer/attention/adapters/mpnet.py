"""MPNet: the encoder computes relative positions once as a bias, which every layer adds to its scores."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from quietformer.attention.adapters.class_swap import ADAPTERS, Adapter, core_of
from quietformer.attention.call_settings import CoreOptions
from quietformer.config.attention import HeadGeometry


def _geometry(module: Any) -> HeadGeometry:
    return HeadGeometry(module.num_attention_heads, module.q.in_features, module.attention_head_size)


def _forward(
    self: Any,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    position_bias: Tensor | None = None,
    output_attentions: bool = False,
    **kwargs: Any,
) -> tuple[Tensor | None, ...]:
    query, key, value = (
        projection(hidden_states).unflatten(-1, (self.num_attention_heads, self.attention_head_size)).transpose(1, 2)
        for projection in (self.q, self.k, self.v)
    )
    options = CoreOptions(dropout=self.dropout.p, weights=output_attentions)
    with core_of(self, hidden_states) as core:
        context, probabilities = core(query, key, value, attention_mask, position_bias, options)
    output: Tensor = self.o(context.flatten(2))
    return (output, probabilities) if output_attentions else (output,)


MPNET = Adapter(
    "transformers.models.mpnet.modeling_mpnet", "MPNetSelfAttention", "QuietMPNetSelfAttention", _forward, _geometry
)
ADAPTERS.append(MPNET)
