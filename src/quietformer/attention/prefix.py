"""Keys and values of tokens that stand in front of every sequence, kept as constants of each layer.

A prefix is computed once and never again: an attention layer puts its keys and values before those it is called with. Nothing
else of the model knows of it, so key/value caches, batches, beams and position ids stay what they are without a prefix. With
rotary positions the prefix has the positions -P..-1; a table of learned positions loses its first P rows (`transforms.prefix`).
"""

# B batch, G key/value heads, P prefix tokens, Q queries, K keys, D features per head

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from quietformer.errors import UnsupportedModelError


class Prefix(nn.Module):
    """The prefix of one attention layer."""

    key_GPD: Tensor
    value_GPD: Tensor

    def __init__(self, key_GPD: Tensor, value_GPD: Tensor) -> None:
        super().__init__()
        self.register_buffer("key_GPD", key_GPD)
        self.register_buffer("value_GPD", value_GPD)

    @property
    def length(self) -> int:
        """The number of its tokens."""
        return self.key_GPD.shape[-2]

    def before(self, key_BGKD: Tensor, value_BGKD: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values with those of the prefix in front."""
        n_batch = key_BGKD.shape[0]  # not `len`, which an export would take for a constant
        key_BGPD = self.key_GPD.to(key_BGKD.dtype).expand(n_batch, -1, -1, -1)
        value_BGPD = self.value_GPD.to(value_BGKD.dtype).expand(n_batch, -1, -1, -1)
        return torch.cat([key_BGPD, key_BGKD], -2), torch.cat([value_BGPD, value_BGKD], -2)

    def seen_by(self, mask: Tensor | None, n_keys: int) -> Tensor | None:
        """A mask that says what it says about the prefix too: what is of the keys' length shows the prefix to every query."""
        length = self.length
        if mask is None or mask.shape[-1] >= n_keys + length:
            return mask
        if mask.shape[-1] != n_keys:
            raise UnsupportedModelError(
                f"a mask for {mask.shape[-1]} keys does not fit {n_keys} keys and a prefix of {length} tokens"
            )
        shown = torch.ones if mask.dtype == torch.bool else torch.zeros
        columns = shown(*mask.shape[:-1], length, dtype=mask.dtype, device=mask.device)
        return torch.cat([columns, mask], -1)


def prefixes(model: nn.Module) -> Iterator[tuple[str, Prefix]]:
    """The name of each attention layer that has a prefix, and the prefix."""
    for name, module in model.named_modules():
        if isinstance(module, Prefix):
            yield name.rpartition(".")[0].rpartition(".")[0], module
