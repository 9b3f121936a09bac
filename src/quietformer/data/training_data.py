"""Everything a training run needs to know of its data, whatever the task."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from transformers import AutoTokenizer

from quietformer.config.recipe import Recipe
from quietformer.data.collate import CausalBatch, Collate, ImageBatch, MaskedBatch, PairBatch, PassageBatch
from quietformer.data.labelled_images import ImageRows, image_rows, split_rows
from quietformer.data.packing import Packer, token_rows
from quietformer.data.pairs import class_names, encode_pairs, pair_rows
from quietformer.data.passages import BySize, passage_rows, row_lengths
from quietformer.data.row_order import CROPS, InOrder, Positions, Row, Rows, Selection, TokenRows, generator, hold_out
from quietformer.data.streaming import Streamed, epoch_texts
from quietformer.data.text_sources import texts_of
from quietformer.data.tokenizers import padding_of, tokenizer_of, train_tokenizer
from quietformer.errors import QuietformerError
from quietformer.files import whole_folder

TOKENIZER = "tokenizer"
"""The folder of a run that holds a tokenizer trained for it."""


@dataclass
class TrainingData:
    """Rows to train on and to validate on, and what made them."""

    rows: Rows | Streamed
    validation: Rows
    tokenizer: Any
    classes: list[str] | None
    described: dict[str, Any]
    lengths: np.ndarray[Any, Any] | None = None  # of rows that differ in it

    @property
    def majority(self) -> float | None:
        """The share of the most frequent class in the validation data: what a model that never looks gets right."""
        if self.classes is None:
            return None
        rows = self.validation
        labels = (
            rows.labels
            if isinstance(rows, _Images)
            else [int(row["labels"]) for row in rows.take(range(len(rows)), None)]
        )
        return float(np.bincount(labels).max() / len(labels))

    @property
    def examples(self) -> int | None:
        """How many there are to train on; nobody knows of a stream."""
        return None if isinstance(self.rows, Streamed) else len(self.rows)

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What tells this data from other data: how much there is, and some of it."""
        found: dict[str, Any] = {"examples": self.examples, "validation": len(self.validation)}
        if self.examples is not None and not isinstance(self.rows, _Images):
            rows: Any = self.rows
            places = np.linspace(0, len(rows) - 1, min(64, len(rows))).astype(int).tolist()
            some = [np.asarray(row["input_ids"]).tolist() for row in rows.take(places, None)]
            found["sample"] = hashlib.sha256(json.dumps(some).encode()).hexdigest()[:16]
        return found

    def training_set(self, total: int, seed: int, batch_size: int) -> Any:
        """`total` positions in a row."""
        if isinstance(self.rows, Streamed):
            return self.rows
        if self.lengths is not None:
            return BySize(self.rows, self.lengths, total, batch_size=batch_size, seed=seed)
        return Positions(self.rows, total, seed)

    def validation_set(self) -> TorchDataset[Row]:
        return InOrder(self.validation)


def training_data(recipe: Recipe, run: Path, *, image_shape: tuple[int, int] = (0, 0)) -> TrainingData:
    """The data of a recipe; a tokenizer that has to be trained is kept in the run folder."""
    data = recipe.data
    if takes_images(recipe):
        found = _image_data(recipe, *image_shape)
    elif recipe.task == "pairs":
        found = _pair_data(recipe, run)
    elif data.unit == "passages":
        found = _passage_data(recipe)
    elif data.streaming:
        found = _stream_data(recipe, run)
    else:
        found = _text_data(recipe, run)
    if data.validation_limit and len(found.validation) > data.validation_limit:
        found.validation = Selection(found.validation, np.arange(data.validation_limit))
    if found.examples is not None and found.examples < recipe.training.batch_size:
        raise QuietformerError(
            f"training.batch_size {recipe.training.batch_size} is larger than the data: {found.examples} "
            f"{found.described['unit']} to train on; give more data or a smaller batch"
        )
    found.described |= {"train": found.examples, "validation": len(found.validation)}
    return found


def takes_images(recipe: Recipe) -> bool:
    return recipe.task == "images" or recipe.data.unit == "images"


def collate_for(
    recipe: Recipe, data: TrainingData, vocabulary: int, *, seed: int, imitated: str | None = None
) -> Collate:
    """What makes batches of rows; `seed` draws the masks, `imitated` is the task of a model that imitates itself."""
    if takes_images(recipe):
        return ImageBatch()
    if recipe.data.unit == "passages":
        return PassageBatch(padding_of(data.tokenizer))
    if "masked" in (recipe.task, imitated):
        return MaskedBatch(data.tokenizer, vocabulary=vocabulary, probability=recipe.data.masked, seed=seed)
    return PairBatch(data.tokenizer, recipe.data.length) if recipe.task == "pairs" else CausalBatch()


def tokenizer_for(recipe: Recipe, run: Path, texts: Any) -> Any:
    """The recipe's tokenizer, the pretrained model's, or one trained on the texts once and kept with the run."""
    if name := recipe.tokenizer.pretrained or recipe.model.pretrained:
        return tokenizer_of(name)
    kept = run / TOKENIZER
    if not (kept / "tokenizer.json").is_file():
        words = recipe.tokenizer
        strings = (text for batch in texts.iter(batch_size=100) for text in batch["text"] if isinstance(text, str))
        trained = train_tokenizer(strings, vocabulary=words.vocabulary, characters=words.characters, task=recipe.task)
        with whole_folder(kept) as draft:
            trained.save_pretrained(draft)
    return AutoTokenizer.from_pretrained(str(kept), local_files_only=True)


def _text_data(recipe: Recipe, run: Path) -> TrainingData:
    data = recipe.data
    texts = texts_of(data.train, data)
    if not len(texts):
        raise QuietformerError(f"{data.train[0].name} holds no text")
    tokenizer = tokenizer_for(recipe, run, texts)
    rows: Rows = TokenRows(token_rows(texts, tokenizer, data))
    validation: Rows
    if data.validation:
        others = texts_of(data.validation, data.model_copy(update={"limit": 0}))
        validation = TokenRows(token_rows(others, tokenizer, data))
    else:
        rows, validation = hold_out(rows, data.hold_out, f"sequences of {data.length} tokens")
    return TrainingData(rows, validation, tokenizer, None, _described(recipe, "sequences"))


def _passage_data(recipe: Recipe) -> TrainingData:
    data = recipe.data
    texts = texts_of(data.train, data)
    if not len(texts):
        raise QuietformerError(f"{data.train[0].name} holds no text")
    tokenizer = tokenizer_of(recipe.tokenizer.pretrained or recipe.model.pretrained)
    dataset = passage_rows(texts, tokenizer, data)
    rows: Rows = TokenRows(dataset)
    lengths = row_lengths(dataset)
    validation: Rows
    if data.validation:
        others = texts_of(data.validation, data.model_copy(update={"limit": 0}))
        validation = TokenRows(passage_rows(others, tokenizer, data))
    else:
        rows, validation = hold_out(rows, data.hold_out, "passages")
        lengths = lengths[rows.indices]
    return TrainingData(rows, validation, tokenizer, None, _described(recipe, "passages"), lengths)


def _stream_data(recipe: Recipe, run: Path) -> TrainingData:
    data = recipe.data
    texts = texts_of(data.train, data)
    tokenizer = tokenizer_for(recipe, run, texts)
    packer = Packer(tokenizer, data.length, data.special_tokens)
    held_out = 0 if data.validation else data.hold_out
    others = texts_of(data.validation, data) if data.validation else texts
    wanted = held_out or data.validation_limit or None
    kept = [{"input_ids": np.asarray(ids)} for ids in itertools.islice(epoch_texts(others, packer), wanted)]
    if not kept:
        raise QuietformerError(f"{data.train[0].name} holds no text, or less than a sequence of {data.length} tokens")
    stream = Streamed(texts, packer, seed=recipe.seed, shuffle_buffer=data.shuffle_buffer, skip=held_out)
    return TrainingData(stream, Kept(kept), tokenizer, None, _described(recipe, "sequences"))


class Kept:
    """Rows in memory."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, indices: Sequence[int], positions: Sequence[int] | None) -> list[Row]:
        return [self._rows[index] for index in indices]


def _pair_data(recipe: Recipe, run: Path) -> TrainingData:
    data = recipe.data
    pairs = pair_rows(data.train, data)
    classes = class_names(pairs)
    tokenizer = tokenizer_for(recipe, run, pairs)
    encoded = encode_pairs(pairs, tokenizer, classes, data)
    rows: Rows = TokenRows(encoded, encoded.column_names)
    validation: Rows
    if data.validation:
        others = pair_rows(data.validation, data.model_copy(update={"limit": 0}))
        validation = TokenRows(encode_pairs(others, tokenizer, classes, data), encoded.column_names)
    else:
        rows, validation = hold_out(rows, data.hold_out, "pairs")
    return TrainingData(rows, validation, tokenizer, classes, _described(recipe, "pairs"))


class _Images:
    """Images as rows; training crops are drawn by position, evaluation takes the image as it is."""

    def __init__(self, images: ImageRows, seed: int) -> None:
        self._images, self._seed = images, seed

    def __len__(self) -> int:
        return len(self._images)

    @property
    def labels(self) -> Any:
        return self._images.labels

    def take(self, indices: Sequence[int], positions: Sequence[int] | None) -> list[Row]:
        draws = [None] * len(indices) if positions is None else [generator(self._seed, CROPS, p) for p in positions]
        loaded: list[tuple[Tensor, int]] = [
            self._images.load(index, draw) for index, draw in zip(indices, draws, strict=True)
        ]
        return [{"pixel_values": pixels, "labels": label} for pixels, label in loaded]


def _image_data(recipe: Recipe, size: int, channels: int) -> TrainingData:
    data, seed = recipe.data, recipe.seed
    labelled = recipe.task == "images"
    images = image_rows(
        data.train, size=size, channels=channels, augment=recipe.augment, limit=data.limit, labelled=labelled
    )
    if data.validation:
        others = image_rows(
            data.validation,
            size=size,
            channels=channels,
            augment=recipe.augment,
            classes=images.classes,
            labelled=labelled,
        )
    else:
        images, others = split_rows(images, data.hold_out)
    classes = images.classes if labelled else None
    return TrainingData(_Images(images, seed), _Images(others, seed), None, classes, _described(recipe, "images"))


def _described(recipe: Recipe, unit: str) -> dict[str, Any]:
    names = {"sources": [source.name for source in recipe.data.train], "unit": unit}
    return names | ({} if takes_images(recipe) else {"length": recipe.data.length})
