"""Calibration text of several lengths: a model that only saw long text in calibration is poor on short text."""

from __future__ import annotations

import torch
from torch import Tensor

from quietformer.architectures.forward import Batch

SHARES = (1, 8, 2, 4)
"""Batches take turns: whole sequences, eighths, halves, quarters; the first two are the most different."""

SHORTEST = 8
"""Tokens of a piece, special tokens included, below which nothing is cut further."""


def mixed_lengths(batches: list[Batch], before: list[int], after: list[int]) -> list[Batch]:
    """The same text, three of four batches cut into shorter pieces with the special tokens `before` and `after` each.

    A batch with padding, or with inputs other than tokens, their mask and their types, is left as it is.
    """
    return [_cut(batch, SHARES[place % len(SHARES)], before, after) for place, batch in enumerate(batches)]


def _cut(batch: Batch, share: int, before: list[int], after: list[int]) -> Batch:
    ids, mask = batch.get("input_ids"), batch.get("attention_mask")
    known = {"input_ids", "attention_mask", "token_type_ids", "labels"}
    if ids is None or ids.dim() != 2 or set(batch) - known or (mask is not None and not bool(mask.all())):
        return batch
    length = ids.shape[1] // share
    room = length - len(before) - len(after)
    if share == 1 or length < SHORTEST or room < 1:
        return batch
    pieces = _pieces(ids, room, before, after)
    made = {"input_ids": pieces}
    if mask is not None:
        made["attention_mask"] = torch.ones_like(pieces)
    if "token_type_ids" in batch:
        made["token_type_ids"] = torch.zeros_like(pieces)
    return made


def _pieces(ids_BT: Tensor, room: int, before: list[int], after: list[int]) -> Tensor:
    text = ids_BT[:, len(before) : ids_BT.shape[1] - len(after)].flatten()
    rows = text[: len(text) // room * room].view(-1, room)
    first, last = (torch.tensor(tokens, dtype=ids_BT.dtype).expand(len(rows), -1) for tokens in (before, after))
    return torch.cat([first, rows, last], 1)
