"""Labels of tokens: masked tokens to predict, the same for every model, and next tokens."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from quietformer.architectures.forward import Batch
from quietformer.errors import QuietformerError

IGNORED = -100
"""The label of a token that is not scored, as transformers has it."""

MASKED_SHARE, REPLACED_SHARE = 0.8, 0.1
"""Of the chosen tokens so many become the mask, so many another token; the rest stays, as BERT was trained."""


def mask_tokens(
    batches: Iterable[Batch],
    *,
    mask_token: int | None,
    special_tokens: Iterable[int],
    vocabulary: int,
    probability: float = 0.15,
    seed: int = 0,
) -> list[Batch]:
    """The batches with tokens hidden and `labels` that name them; the same for the same sequences and seed.

    What is drawn depends on the sequences alone, in their order: neither padding nor the batch size changes a mask.
    """
    if mask_token is None:
        raise QuietformerError("the tokenizer has no mask token, which the perplexity of a masked model needs")
    special = torch.tensor(sorted({*special_tokens, mask_token}))
    everything = torch.arange(vocabulary)
    # Never a special token in place of a word: some models count their positions by the padding token they see.
    ordinary = everything[~torch.isin(everything, special)]
    if not len(ordinary):
        raise QuietformerError(f"all {vocabulary} tokens of the vocabulary are special; there is nothing to mask")
    generator = torch.Generator().manual_seed(seed)
    masked = []
    for batch in batches:
        ids = batch["input_ids"].clone()
        labels = torch.full_like(ids, IGNORED)
        maskable = _real(batch) & ~torch.isin(ids, special.to(ids.device))
        for row in range(len(ids)):
            positions = maskable[row].nonzero()[:, 0]
            if len(positions):
                chosen, replacements = _hide(ids[row, positions], ordinary, mask_token, probability, generator)
                positions = positions[chosen]
                labels[row, positions] = ids[row, positions]
                ids[row, positions] = replacements
        masked.append(batch | {"input_ids": ids, "labels": labels})
    return masked


def _hide(
    tokens: Tensor, ordinary: Tensor, mask_token: int, probability: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Which of a sequence's tokens are asked for, and what stands in their place."""
    chance = torch.rand(len(tokens), generator=generator)
    how = torch.rand(len(tokens), generator=generator)
    others = ordinary[torch.randint(len(ordinary), (len(tokens),), generator=generator)]
    # A short sequence may draw none; then the one that came closest, so that every sequence counts.
    chosen = chance <= max(probability, float(chance.min()))
    shown = torch.where(how < MASKED_SHARE + REPLACED_SHARE, others, tokens.cpu())
    shown = shown.masked_fill(how < MASKED_SHARE, mask_token)
    return chosen.to(tokens.device), shown[chosen].to(tokens.device)


def next_tokens(batch: Batch) -> Tensor:
    """For every position the token after it as its label; none where either of the two is padding."""
    ids, real = batch["input_ids"], _real(batch)
    labels = torch.full_like(ids, IGNORED)
    labels[:, :-1] = ids[:, 1:].masked_fill(~(real[:, 1:] & real[:, :-1]), IGNORED)
    return labels


def _real(batch: Batch) -> Tensor:
    mask = batch.get("attention_mask")
    return torch.ones_like(batch["input_ids"], dtype=torch.bool) if mask is None else mask.bool()
