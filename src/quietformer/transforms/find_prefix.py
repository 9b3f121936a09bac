"""Finds the tokens that a prefix needs: those on which massive activations sit, chosen by what they leave in the text.

A prefix is good if one static range fits all tokens behind it. So candidates are put in front of calibration data, and what is
measured is how many bits the widest token of the text takes from an ordinary one, on average over the inputs of linear layers.
"""

# B sequences, T tokens, P prefix tokens, d features

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from quietformer.architectures.forward import Batch, check_batches, check_model, in_eval_mode, run
from quietformer.architectures.layout import head_modules
from quietformer.errors import QuietformerError
from quietformer.transforms.prefix import check_prefix

MASSIVE = 8.0
"""A token is massive for a linear layer if its largest value is so many times that of the median token."""

CANDIDATES = 4
"""Tokens of the text that are tried, besides the model's own token for the beginning."""

WORTH = 0.1
"""Bits that a further token has to bring, on average over the linear layers."""

SEQUENCES = 4
"""Sequences on which candidates are compared."""


@dataclass(frozen=True)
class PrefixTrial:
    """One prefix, and the bits that the widest token of the text takes from an ordinary one with it."""

    tokens: tuple[int, ...]
    bits_lost: float


def find_prefix(model: PreTrainedModel, batches: Iterable[Batch], *, most: int = 4) -> tuple[int, ...]:
    """The tokens to pass to `add_prefix_`, at most so many; none if no token helps."""
    return prefix_trials(model, batches, most=most)[-1].tokens


def prefix_trials(model: PreTrainedModel, batches: Iterable[Batch], *, most: int = 4) -> list[PrefixTrial]:
    """The best prefix of each length, from none to the one that is worth its tokens."""
    check_model(model)
    check_batches(batches)
    check_prefix(model, (0,))
    batches = list(batches)
    if not batches or "input_ids" not in batches[0]:
        raise QuietformerError("there are no tokens to find a prefix with; pass batches of text")
    batch = {name: tensor[:SEQUENCES] for name, tensor in batches[0].items() if name in ("input_ids", "attention_mask")}
    with in_eval_mode(model), torch.no_grad():
        seen = _look(model, batch, ())
        found = [PrefixTrial((), seen.bits_lost)]
        own = [token for token in (_beginning(model),) if token is not None]
        candidates = list(dict.fromkeys([*own, *(token for token, _ in seen.massive.most_common(CANDIDATES))]))
        while candidates and len(found) <= most:
            ahead = found[-1].tokens
            tried = [
                PrefixTrial((*ahead, token), _look(model, batch, (*ahead, token)).bits_lost) for token in candidates
            ]
            best = min(tried, key=lambda trial: trial.bits_lost)
            if found[-1].bits_lost - best.bits_lost < WORTH:
                break
            found.append(best)
    return found


def _beginning(model: PreTrainedModel) -> int | None:
    """The token that the model's texts begin with, as its config says."""
    token = getattr(model.config, "bos_token_id", None)
    words: Any = model.get_input_embeddings()
    return token if isinstance(token, int) and 0 <= token < words.num_embeddings else None


@dataclass
class _Seen:
    """What one pass shows: bits lost, and how often each token was massive for a linear layer."""

    bits_lost: float
    massive: Counter[int]


def _look(model: PreTrainedModel, batch: Batch, tokens: tuple[int, ...]) -> _Seen:
    """Run the batch behind the tokens and look at the text only."""
    ids_BT = batch["input_ids"]
    mask_BT = batch.get("attention_mask", torch.ones_like(ids_BT))
    front_BP = torch.tensor(tokens, dtype=ids_BT.dtype).expand(len(ids_BT), -1)
    whole = {
        "input_ids": torch.cat([front_BP, ids_BT], 1),
        "attention_mask": torch.cat([torch.ones_like(front_BP), mask_BT], 1),
    }
    real_BT = mask_BT.bool()
    lost: list[Tensor] = []
    massive: Counter[int] = Counter()

    def watch(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        rows = args[0].detach()
        if rows.numel() != whole["input_ids"].numel() * rows.shape[-1]:
            return  # an expert reads some tokens only
        widest_BT = rows.abs().amax(-1).view(whole["input_ids"].shape)[:, len(tokens) :].cpu()
        median = widest_BT[real_BT].median()
        lost.append((widest_BT[real_BT].max() / median).log2())
        here_BT = real_BT & (widest_BT > MASSIVE * median)
        massive.update(ids_BT[:, 1:][here_BT[:, 1:]].tolist())  # the first one is massive whatever it is

    head = head_modules(model)
    linears = [
        module for module in model.modules() if isinstance(module, (nn.Linear, Conv1D)) and id(module) not in head
    ]
    handles = [module.register_forward_pre_hook(watch) for module in linears]
    try:
        run(model, whole)
    finally:
        for handle in handles:
            handle.remove()
    if not lost:
        raise QuietformerError(
            f"{type(model).__name__} has no linear layers that read whole texts, so no prefix is found"
        )
    return _Seen(float(torch.stack(lost).mean()), massive)
