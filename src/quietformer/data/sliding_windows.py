"""A whole text in windows that overlap, so that every token is predicted once and from a long context."""

# W windows, T tokens of a window

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from quietformer.architectures.forward import Batch
from quietformer.data.text_batches import TEXT_REMEDY, pieces
from quietformer.data.token_labels import IGNORED
from quietformer.errors import QuietformerError
from quietformer.files import check_regular


def file_tokens(path: Path, tokenizer: Any) -> list[int]:
    """The tokens of a whole file in a row, its line breaks among them."""
    check_regular(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise QuietformerError(f"{path} cannot be read as text: {error}; {TEXT_REMEDY}") from None
    return [
        token
        for piece in pieces(text)
        for token in tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"]
    ]


def sliding_windows(
    tokens: Sequence[int], *, length: int, stride: int, before: Sequence[int] = (), batch_size: int = 8
) -> list[Batch]:
    """Batches of windows of so many tokens that move by `stride`; their labels name each token once, but for the first.

    `before` stands in front of every window and is part of its length.
    """
    room = length - len(before)
    longest = room if before else room - 1  # with nothing before it, the first token of a window is not predicted there
    if not 1 <= stride <= longest:
        raise QuietformerError(f"a stride of {stride} does not fit windows of {room} tokens; give 1 to {longest}")
    if len(tokens) < 2:
        raise QuietformerError("the text has fewer than 2 tokens, so nothing can be predicted; choose another text")
    rows: list[tuple[list[int], list[int]]] = []
    scored = 0 if before else 1  # tokens whose prediction is in a window already
    for start in range(0, len(tokens), stride):
        inside = list(tokens[start : start + room])
        targets = [*before, *inside][1:]
        first = start - len(before) + 1  # where in the text the first target is
        labels = [token if first + place >= scored else IGNORED for place, token in enumerate(targets)]
        rows.append(([*before, *inside], [*labels, IGNORED]))
        scored = start + len(inside)
        if scored >= len(tokens):
            break
    batches: list[Batch] = []
    for begin in range(0, len(rows), batch_size):
        group = rows[begin : begin + batch_size]
        for size in dict.fromkeys(len(ids) for ids, _ in group):  # the last one is shorter: no padding
            ids_WT, labels_WT = (torch.tensor([row[part] for row in group if len(row[0]) == size]) for part in (0, 1))
            batches.append({"input_ids": ids_WT, "attention_mask": torch.ones_like(ids_WT), "labels": labels_WT})
    return batches
