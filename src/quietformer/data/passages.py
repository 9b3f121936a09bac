"""Texts as passages of a few sentences each, with their own beginnings and ends: what encoders of sentences are given."""

# N passages of the data

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from quietformer.config.recipe import DataRecipe
from quietformer.data.packing import TEXTS_AT_ONCE, Packer, fingerprint
from quietformer.data.row_order import ORDER, PASSAGES, Positions, Row, Rows, generator
from quietformer.errors import QuietformerError

SENTENCE_END = re.compile(r"(?<=[.!?])\s+")

SENTENCES = (1, 1, 2, 3, 6)
"""So many sentences a passage has, each as likely: half of them are short."""

SHORTEST = 3
"""A leftover of fewer tokens says nothing."""

BATCHES_SORTED = 8
"""So many batches are sorted by length together: little padding, and still a random order."""


def passage_rows(texts: Any, tokenizer: Any, data: DataRecipe) -> Any:
    """Rows of up to `data.length` tokens under "input_ids", special tokens around each."""
    from datasets import Features, List, Value

    packer = Packer(tokenizer, data.length, "sequence")

    def cut(batch: dict[str, list[Any]], places: list[int]) -> dict[str, list[list[int]]]:
        pairs = zip(batch["text"], places, strict=True)
        found = [part for text, place in pairs if isinstance(text, str) for part in passages(text, place)]
        rows = []
        for ids in packer.tokenise({"text": found})["input_ids"]:
            for start in range(0, len(ids), packer.room):
                part = ids[start : start + packer.room]
                if len(part) >= SHORTEST:
                    rows.append([*packer.before, *part, *packer.after])
        return {"input_ids": rows}

    rows = texts.map(
        cut,
        batched=True,
        with_indices=True,
        batch_size=TEXTS_AT_ONCE,
        remove_columns=texts.column_names,
        features=Features({"input_ids": List(Value("int32"))}),
        num_proc=data.processes if data.processes > 1 and len(texts) > TEXTS_AT_ONCE else None,
        new_fingerprint=fingerprint(
            texts._fingerprint, packer.tokenizer_fingerprint, "passages", data.length, SENTENCES
        ),
        desc="cutting into passages",
    )
    if not len(rows):
        raise QuietformerError(f"the text has no passage of {SHORTEST} tokens or more; give more of it")
    return rows.with_format(None)


def passages(text: str, place: int) -> list[str]:
    """The text in groups of sentences, how many follows from its place in the data."""
    sentences = SENTENCE_END.split(text.strip())
    draw, found = generator(0, PASSAGES, place), []
    while sentences:
        count = SENTENCES[int(draw.integers(len(SENTENCES)))]
        found.append(" ".join(sentences[:count]))
        sentences = sentences[count:]
    return [part for part in found if part.strip()]


def row_lengths(dataset: Any) -> np.ndarray[Any, Any]:
    """How many tokens every row has, without reading the tokens into Python."""
    import pyarrow.compute as compute

    table = dataset.with_format("arrow")[:]
    return np.asarray(compute.list_value_length(table["input_ids"]))


class BySize(Positions):
    """As `Positions`, but each batch has rows of like length, so that little of it is padding."""

    def __init__(self, rows: Rows, lengths: np.ndarray[Any, Any], total: int, *, batch_size: int, seed: int) -> None:
        super().__init__(rows, total, seed)
        self._lengths, self._batch_size = lengths, batch_size

    @property
    def _an_epoch(self) -> int:
        """Whole batches only; which rows are left over differs from epoch to epoch."""
        return len(self._rows) // self._batch_size * self._batch_size

    def _order(self, epoch: int) -> np.ndarray[Any, Any]:
        draw, size = generator(self._seed, ORDER, epoch), self._batch_size
        order = draw.permutation(len(self._rows))[: self._an_epoch]
        window = size * BATCHES_SORTED
        batches: list[np.ndarray[Any, Any]] = []
        for start in range(0, len(order), window):
            part = order[start : start + window]
            part = part[np.argsort(self._lengths[part], kind="stable")].reshape(-1, size)
            batches += list(part[draw.permutation(len(part))])
        return np.concatenate(batches)


def padded(rows: Sequence[Row], pad: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Tokens and mask of rows of different length."""
    longest = max(len(row["input_ids"]) for row in rows)
    ids_BT = np.full((len(rows), longest), pad, np.int64)
    mask_BT = np.zeros((len(rows), longest), np.int64)
    for place, row in enumerate(rows):
        ids_BT[place, : len(row["input_ids"])] = row["input_ids"]
        mask_BT[place, : len(row["input_ids"])] = 1
    return ids_BT, mask_BT
