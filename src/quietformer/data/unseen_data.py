"""Data to measure a healed model on: neither trained on, nor looked at to choose its best checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from quietformer.architectures.forward import Batch
from quietformer.architectures.task import task_of
from quietformer.config.recipe import Recipe, Source
from quietformer.data.batches_from_options import image_size
from quietformer.data.calibration_data import CalibrationData, wants_token_types
from quietformer.data.collate import example_batches
from quietformer.data.fingerprint_file import check_data
from quietformer.data.row_order import Row
from quietformer.data.streaming import Streamed
from quietformer.data.training_data import (
    Kept,
    TrainingData,
    collate_for,
    takes_images,
    training_data,
    vocabulary_of,
)
from quietformer.errors import QuietformerError

CALIBRATED = 128
"""Training examples a calibration takes."""

BATCH = 16


def measuring_data(
    recipe: Recipe, data: TrainingData, model: PreTrainedModel, evaluation: tuple[Source, ...], sequences: int
) -> CalibrationData:
    """Up to `sequences` examples, neither trained on nor looked at during training to choose the best checkpoint.

    They come from the `evaluation` sources in equal shares, or else from what the training data holds out.
    """
    # With text of its own to measure on, nothing is held out for that: calibration may draw from all of it.
    rows: Any = data.everything if evaluation else data.rows
    trained = _fingerprints(rows) if recipe.data.unit != "images" else set()
    asked: list[Row] = []
    counts: dict[str, int] = {}
    others = [data.read((source,)) for source in evaluation]
    share = -(-sequences // max(1, len(evaluation)))
    for source, other in zip(evaluation, others, strict=True):
        some = spread_rows(Kept(_fresh(other, _places(len(other), 2 * share), trained)), share)
        counts[source.name] = len(some)
        asked += some
    if not evaluation:
        watched = recipe.data.validation_limit or len(data.held_out)
        fresh = _fresh(data.held_out, range(watched, len(data.held_out)), trained)
        asked = spread_rows(Kept(fresh), sequences)
        counts["held out of the same"] = len(asked)
    if len(asked) < 2:
        raise QuietformerError("nothing is left to measure on; give more text, or other text with --eval-texts")
    if recipe.data.unit == "passages":  # neighbours of like length, so that little is padding
        asked.sort(key=lambda row: len(row["input_ids"]))
    info = data.info.adding(
        train=len(rows),
        validation=len(others[0] if evaluation else data.held_out),
        evaluation=counts,
        evaluation_sequences=len(asked),
        calibration_sequences=min(CALIBRATED, len(rows)),
    )
    batched = _batched(recipe, data, model)
    return CalibrationData(batched(asked), drawn_by_seed(rows, batched), data.tokenizer, info)


def _batched(recipe: Recipe, data: TrainingData, model: PreTrainedModel) -> Callable[[list[Row]], list[Batch]]:
    """Makes batches of rows as the model takes them."""
    task = task_of(model)
    collate = collate_for(recipe, data, vocabulary_of(model, recipe), seed=recipe.seed, distilled=task)
    types = data.tokenizer is not None and wants_token_types(model, data.tokenizer)

    def batched(rows: list[Row]) -> list[Batch]:
        made = example_batches(Kept(rows), range(len(rows)), collate, BATCH, labelled=task == "masked")
        if types:
            made = [batch | {"token_type_ids": torch.zeros_like(batch["input_ids"])} for batch in made]
        return made

    return batched


def drawn_by_seed(rows: Any, batched: Callable[[list[Any]], list[Batch]]) -> Callable[[int], list[Batch]]:
    """Calibration data: for each seed other rows of what was trained on."""

    def drawn(seed: int) -> list[Batch]:
        places = np.random.default_rng(seed).permutation(len(rows))[:CALIBRATED]
        return batched(rows.take([int(place) for place in places], None))

    return drawn


def _places(length: int, count: int) -> list[int]:
    """So many places, or all there are, at even distances from the first to the last."""
    return [int(place) for place in np.linspace(0, length - 1, min(length, count))]


def spread_rows(rows: Any, count: int) -> list[Any]:
    """So many of the rows, or all there are, from the first to the last."""
    return list(rows.take(_places(len(rows), count), None))


def _fingerprints(rows: Any) -> set[bytes]:
    """Of all rows: what stands in the text twice must not be both trained on and measured."""
    found = set()
    for begin in range(0, len(rows), 1000):
        found |= {_fingerprint(row) for row in rows.take(range(begin, min(begin + 1000, len(rows))), None)}
    return found


def _fingerprint(row: Any) -> bytes:
    return hashlib.blake2b(np.asarray(row["input_ids"], np.int64).tobytes(), digest_size=12).digest()


def _fresh(rows: Any, places: Iterable[int], trained: set[bytes]) -> list[Any]:
    """Rows that are not trained on, in their order, each once."""
    taken = rows.take([int(place) for place in places], None)
    if not taken or "input_ids" not in taken[0]:
        return list(taken)
    seen = set(trained)
    fresh = []
    for row in taken:
        if (mark := _fingerprint(row)) not in seen:
            seen.add(mark)
            fresh.append(row)
    return fresh


def validation_data(recipe: Recipe, run: Path, model: PreTrainedModel, sequences: int) -> CalibrationData:
    """What the run was validated on, asked in the same way whatever its seed; calibration takes what it was trained on."""
    shape = image_size(model) if takes_images(recipe) else (0, 0)
    found = training_data(recipe, run, image_shape=shape)
    check_data(run, found.fingerprint)  # rows that were trained on must not turn up among those that are asked
    distilled = task_of(model) if recipe.task == "distill" else None
    collate = collate_for(recipe, found, vocabulary_of(model, recipe), seed=0, distilled=distilled)
    labelled = "masked" in (recipe.task, distilled) or recipe.task in ("images", "pairs")
    asked = spread_rows(found.validation, sequences)
    # A stream has no rows to choose from: its validation data is divided.
    source: Any = Kept(asked[1::2]) if isinstance(found.rows, Streamed) else found.rows
    asked = asked[::2] if isinstance(found.rows, Streamed) else asked

    def batched(rows: list[Row]) -> list[Batch]:
        return example_batches(Kept(rows), range(len(rows)), collate, BATCH, labelled=labelled)

    info = found.info.adding(evaluation_sequences=len(asked), calibration_sequences=min(CALIBRATED, len(source)))
    return CalibrationData(batched(asked), drawn_by_seed(source, batched), found.tokenizer, info)
