"""Rows made into batches: masks drawn by position, labels, padding."""

# B sequences, T tokens

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quietformer.architectures.forward import Batch
from quietformer.data.image_batches import as_models_take
from quietformer.data.passages import padded
from quietformer.data.row_order import MASKS, Row, generator
from quietformer.data.token_labels import IGNORED, MASKED_SHARE, REPLACED_SHARE
from quietformer.errors import QuietformerError

Collate = Callable[[list[Row]], dict[str, Tensor]]


class CausalBatch:
    """Every token is asked for; the model shifts its labels itself."""

    def __call__(self, rows: list[Row]) -> dict[str, Tensor]:
        ids = torch.from_numpy(np.stack([row["input_ids"] for row in rows]).astype(np.int64))
        return {"input_ids": ids, "labels": ids.clone()}


class MaskedBatch:
    """The share `probability` of tokens is asked for: 80 % hidden, 10 % replaced, 10 % left, by seed and position."""

    def __init__(self, tokenizer: Any, *, vocabulary: int, probability: float, seed: int) -> None:
        if tokenizer.mask_token_id is None:
            raise QuietformerError("the tokenizer has no mask token, which a masked model needs; choose another")
        special = np.zeros(vocabulary, dtype=bool)
        special[[token for token in tokenizer.all_special_ids if token < vocabulary]] = True
        self._special, self._ordinary = special, np.flatnonzero(~special)
        self._mask_token, self._probability, self._seed = tokenizer.mask_token_id, probability, seed

    def __call__(self, rows: list[Row]) -> dict[str, Tensor]:
        ids_BT = np.stack([row["input_ids"] for row in rows]).astype(np.int64)
        draws = [generator(self._seed, MASKS, row["position"]).random((3, ids_BT.shape[1])) for row in rows]
        chance_BT, how_BT, which_BT = np.stack(draws, axis=1)
        asked_BT = (chance_BT < self._probability) & ~self._special[ids_BT]
        labels_BT = np.where(asked_BT, ids_BT, IGNORED)
        others_BT = self._ordinary[(which_BT * len(self._ordinary)).astype(np.int64)]
        shown_BT = np.where(asked_BT & (how_BT < MASKED_SHARE + REPLACED_SHARE), others_BT, ids_BT)
        shown_BT = np.where(asked_BT & (how_BT < MASKED_SHARE), self._mask_token, shown_BT)
        return {"input_ids": torch.from_numpy(shown_BT), "labels": torch.from_numpy(labels_BT)}


class PairBatch:
    """Pairs of texts padded to one length, with their classes."""

    def __init__(self, tokenizer: Any, length: int) -> None:
        self._tokenizer, self._length = tokenizer, length

    def __call__(self, rows: list[Row]) -> dict[str, Tensor]:
        batch = self._tokenizer.pad(
            [{name: value for name, value in row.items() if name not in ("labels", "position")} for row in rows],
            padding="max_length", max_length=self._length, return_tensors="pt",
        )  # fmt: skip
        return {**batch, "labels": torch.tensor([int(row["labels"]) for row in rows])}


class PassageBatch:
    """Texts of different length, padded to the longest."""

    def __init__(self, pad: int) -> None:
        self._pad = pad

    def __call__(self, rows: list[Row]) -> dict[str, Tensor]:
        ids_BT, mask_BT = padded(rows, self._pad)
        return {"input_ids": torch.from_numpy(ids_BT), "attention_mask": torch.from_numpy(mask_BT)}


class ImageBatch:
    """Pixels in [0, 1] and classes; the position of the first says how the batch is augmented."""

    def __call__(self, rows: list[Row]) -> dict[str, Tensor]:
        return {
            "pixel_values": torch.stack([row["pixel_values"] for row in rows]),
            "labels": torch.tensor([row["labels"] for row in rows]),
            "positions": torch.tensor([row["position"] for row in rows]),
        }


def example_batches(rows: Any, places: Sequence[int], collate: Collate, size: int, *, labelled: bool) -> list[Batch]:
    """Some of the rows as the model takes them, to measure it on, with what it should answer if that is asked for."""
    batches = []
    for begin in range(0, len(places), size):
        some = list(places[begin : begin + size])
        taken = [row | {"position": place} for row, place in zip(rows.take(some, None), some, strict=True)]
        batch = collate(taken)
        batch.pop("positions", None)
        if "pixel_values" in batch:
            batch["pixel_values"] = as_models_take(batch["pixel_values"])
        if not labelled:
            batch.pop("labels", None)
        batches.append(batch)
    return batches
