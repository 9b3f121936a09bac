"""Everything a training run needs to know of its data, whatever the task."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from transformers import PreTrainedModel

from quietformer.config.recipe import DataRecipe, Recipe, Source
from quietformer.data.collate import CausalBatch, Collate, ImageBatch, MaskedBatch, PairBatch, PassageBatch
from quietformer.data.fingerprint_file import DataFingerprint
from quietformer.data.packing import Packer, token_rows
from quietformer.data.pairs import class_names, encode_pairs, pair_rows
from quietformer.data.passages import BySize, passage_rows, row_lengths
from quietformer.data.row_order import (
    CROPS,
    Count,
    InOrder,
    Positions,
    Row,
    Rows,
    Selection,
    TokenRows,
    as_asked,
    at_most_a_third,
    generator,
    hold_out,
)
from quietformer.data.streaming import Streamed, epoch_texts
from quietformer.data.text_fit import LONGEST, LOOKED_AT, check_fit
from quietformer.data.text_sources import texts_of
from quietformer.data.tokenizers import padding_of, tokenizer_of, train_tokenizer
from quietformer.data.training_images import ImageRows, image_rows, split_rows
from quietformer.errors import QuietformerError
from quietformer.files import whole_folder
from quietformer.results.data import DataInfo

TOKENIZER = "tokenizer"
"""The folder of a run that holds a tokenizer trained for it."""


Read = Callable[[tuple[Source, ...]], Rows]
"""Makes rows of other sources as they were made of the training data: the same tokenizer, classes and sizes."""


@dataclass
class TrainingData:
    """Rows to train on and to validate on, and what made them."""

    rows: Rows | Streamed
    held_out: Rows
    tokenizer: Any
    classes: list[str] | None
    info: DataInfo
    everything: Rows | Streamed  # what is trained on and what was held out of it
    read: Read
    lengths: np.ndarray[Any, Any] | None = None  # of rows that differ in it
    validation_limit: int = 0

    @property
    def validation(self) -> Rows:
        """What a run is evaluated on: as much of what is held out as the recipe asks for."""
        if self.validation_limit and len(self.held_out) > self.validation_limit:
            return Selection(self.held_out, np.arange(self.validation_limit))
        return self.held_out

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
    def fingerprint(self) -> DataFingerprint:
        """What tells this data from other data."""
        if isinstance(self.rows, Streamed | _Images):
            return DataFingerprint(examples=self.examples, validation=len(self.validation))
        places = np.linspace(0, len(self.rows) - 1, min(64, len(self.rows))).astype(int).tolist()
        some = [np.asarray(row["input_ids"]).tolist() for row in self.rows.take(places, None)]
        sample = hashlib.sha256(json.dumps(some).encode()).hexdigest()[:16]
        return DataFingerprint(examples=self.examples, validation=len(self.validation), sample=sample)

    def training_set(self, total: int, seed: int, batch_size: int) -> Any:
        """`total` positions in a row."""
        if isinstance(self.rows, Streamed):
            return self.rows
        if self.lengths is not None:
            return BySize(self.rows, self.lengths, total, batch_size=batch_size, seed=seed)
        return Positions(self.rows, total, seed)

    def validation_set(self) -> TorchDataset[Row]:
        return InOrder(self.validation)


def training_data(
    recipe: Recipe, run: Path, *, image_shape: tuple[int, int] = (0, 0), shrink: bool = False
) -> TrainingData:
    """The data of a recipe; a tokenizer that has to be trained is kept in the run folder.

    With `shrink`, less than `data.hold_out` is held out of little data, and `data.validation_limit` is then a third of it.
    """
    data, count = recipe.data, at_most_a_third if shrink else as_asked
    if takes_images(recipe):
        found = _image_data(recipe, image_shape, count)
    elif recipe.task == "pairs":
        found = _pair_data(recipe, run, count)
    elif data.unit == "passages":
        found = _passage_data(recipe, count)
    elif data.streaming:
        found = _stream_data(recipe, run)
    else:
        found = _text_data(recipe, run, count)
    found.validation_limit = data.validation_limit
    if shrink and not data.validation and len(found.held_out) < data.hold_out:
        found.validation_limit = min(data.validation_limit, max(1, len(found.held_out) // 3))
    if found.examples is not None and found.examples < recipe.training.batch_size:
        raise QuietformerError(
            f"training.batch_size {recipe.training.batch_size} is larger than the data: {found.examples} "
            f"{found.info.unit} to train on; give more data or a smaller batch"
        )
    found.info = found.info.adding(train=found.examples, validation=len(found.validation))
    return found


def takes_images(recipe: Recipe) -> bool:
    return recipe.task == "images" or recipe.data.unit == "images"


def vocabulary_of(model: PreTrainedModel, recipe: Recipe) -> int:
    """Tokens that the model knows; none for one that takes images."""
    if takes_images(recipe):
        return 0
    embeddings: Any = model.get_input_embeddings()
    return int(embeddings.weight.shape[0])


def collate_for(
    recipe: Recipe, data: TrainingData, vocabulary: int, *, seed: int, distilled: str | None = None
) -> Collate:
    """What makes batches of rows; `seed` draws the masks, `distilled` is the task of a model that has a teacher."""
    if takes_images(recipe):
        return ImageBatch()
    if recipe.data.unit == "passages":
        return PassageBatch(padding_of(data.tokenizer))
    if "masked" in (recipe.task, distilled):
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
    return tokenizer_of(str(kept))


def _text_data(recipe: Recipe, run: Path, count: Count) -> TrainingData:
    data = recipe.data
    texts = _some_texts(recipe)
    tokenizer = tokenizer_for(recipe, run, texts)
    _check_fit(recipe, texts, tokenizer)

    def read(sources: tuple[Source, ...]) -> Rows:
        return TokenRows(token_rows(texts_of(sources, _whole(recipe)), tokenizer, data))

    everything = TokenRows(token_rows(texts, tokenizer, data))
    rows, held_out = _divided(recipe, everything, read, count, f"sequences of {data.length} tokens")
    return TrainingData(rows, held_out, tokenizer, None, _info(recipe, "sequences"), everything, read)


def _passage_data(recipe: Recipe, count: Count) -> TrainingData:
    data = recipe.data
    texts = _some_texts(recipe)
    tokenizer = tokenizer_of(recipe.tokenizer.pretrained or recipe.model.pretrained)
    _check_fit(recipe, texts, tokenizer)

    def read(sources: tuple[Source, ...]) -> Rows:
        return TokenRows(passage_rows(texts_of(sources, _whole(recipe)), tokenizer, data))

    dataset = passage_rows(texts, tokenizer, data)
    everything, lengths = TokenRows(dataset), row_lengths(dataset)
    rows, held_out = _divided(recipe, everything, read, count, "passages")
    lengths = lengths[rows.indices] if isinstance(rows, Selection) else lengths
    return TrainingData(rows, held_out, tokenizer, None, _info(recipe, "passages"), everything, read, lengths)


def _some_texts(recipe: Recipe) -> Any:
    texts = texts_of(recipe.data.train, recipe.data)
    if not len(texts):
        raise QuietformerError(f"{recipe.data.train[0].name} holds no text")
    return texts


def _check_fit(recipe: Recipe, texts: Any, tokenizer: Any) -> None:
    """A tokenizer that was trained on these texts suits them."""
    if not (recipe.tokenizer.pretrained or recipe.model.pretrained):
        return
    first = (row["text"] for row in itertools.islice(texts, LOOKED_AT))
    check_fit((text[:LONGEST] for text in first if isinstance(text, str)), tokenizer, recipe.data.train[0].in_words)


def _whole(recipe: Recipe) -> DataRecipe:
    """The limit is on what is trained on."""
    return recipe.data.model_copy(update={"limit": 0})


def _divided(recipe: Recipe, everything: Rows, read: Read, count: Count, what: str) -> tuple[Rows, Rows]:
    """What is trained on and what is held out: sources of its own, or a part of the rows."""
    if recipe.data.validation:
        return everything, read(recipe.data.validation)
    return hold_out(everything, count(recipe.data.hold_out, len(everything)), what)


def _stream_data(recipe: Recipe, run: Path) -> TrainingData:
    data = recipe.data
    texts = texts_of(data.train, data)
    tokenizer = tokenizer_for(recipe, run, texts)
    packer = Packer(tokenizer, data.length, data.special_tokens)
    skipped = 0 if data.validation else data.hold_out
    wanted = skipped or data.validation_limit or None

    def first(texts: Any) -> Rows:
        return Kept([{"input_ids": np.asarray(ids)} for ids in itertools.islice(epoch_texts(texts, packer), wanted)])

    def read(sources: tuple[Source, ...]) -> Rows:
        return first(texts_of(sources, data))

    held_out = read(data.validation) if data.validation else first(texts)
    if not len(held_out):
        raise QuietformerError(f"{data.train[0].name} holds no text, or less than a sequence of {data.length} tokens")
    stream = Streamed(texts, packer, seed=recipe.seed, shuffle_buffer=data.shuffle_buffer, skip=skipped)
    return TrainingData(stream, held_out, tokenizer, None, _info(recipe, "sequences"), stream, read)


class Kept:
    """Rows in memory."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, indices: Sequence[int], positions: Sequence[int] | None) -> list[Row]:
        return [self._rows[index] for index in indices]


def _pair_data(recipe: Recipe, run: Path, count: Count) -> TrainingData:
    data = recipe.data
    pairs = pair_rows(data.train, data)
    classes = class_names(pairs)
    tokenizer = tokenizer_for(recipe, run, pairs)
    encoded = encode_pairs(pairs, tokenizer, classes, data)

    def read(sources: tuple[Source, ...]) -> Rows:
        others = encode_pairs(pair_rows(sources, _whole(recipe)), tokenizer, classes, data)
        return TokenRows(others, encoded.column_names)

    everything = TokenRows(encoded, encoded.column_names)
    rows, held_out = _divided(recipe, everything, read, count, "pairs")
    return TrainingData(rows, held_out, tokenizer, classes, _info(recipe, "pairs"), everything, read)


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


def _image_data(recipe: Recipe, shape: tuple[int, int], count: Count) -> TrainingData:
    data, seed = recipe.data, recipe.seed
    labelled = recipe.task == "images"

    def images_of(sources: tuple[Source, ...], classes: list[str] | None = None, limit: int = 0) -> ImageRows:
        return image_rows(sources, shape=shape, augment=recipe.augment, classes=classes, limit=limit, labelled=labelled)

    everything = images_of(data.train, limit=data.limit)

    def read(sources: tuple[Source, ...]) -> Rows:
        return _Images(images_of(sources, classes=everything.classes), seed)

    if data.validation:
        rows, held_out = everything, images_of(data.validation, classes=everything.classes)
    else:
        rows, held_out = split_rows(everything, count(data.hold_out, len(everything)))
    return TrainingData(
        _Images(rows, seed), _Images(held_out, seed), None, everything.classes if labelled else None,
        _info(recipe, "images"), _Images(everything, seed), read,
    )  # fmt: skip


def _info(recipe: Recipe, unit: str) -> DataInfo:
    sources = [source.name for source in recipe.data.train]
    info = DataInfo(sources=sources, unit=unit)
    return info if takes_images(recipe) else info.adding(length=recipe.data.length)
