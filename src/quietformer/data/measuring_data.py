"""Data to measure a healed model on: neither trained on, nor looked at to choose its best checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from transformers import PreTrainedModel

from quietformer.architectures.forward import Batch
from quietformer.architectures.task import task_of
from quietformer.config.recipe import Recipe, Source
from quietformer.data.calibration_data import CalibrationData, wants_token_types
from quietformer.data.collate import example_batches
from quietformer.data.fingerprint_file import check_data
from quietformer.data.model_inputs import image_size
from quietformer.data.streaming import Streamed
from quietformer.data.training_data import Kept, TrainingData, collate_for, takes_images, training_data
from quietformer.errors import QuietformerError
from quietformer.results.data import DataInfo

CALIBRATED = 128
"""Training examples a calibration takes."""

BATCH = 16


class MeasuringOptions(Protocol):
    """What a user says about the data that results are measured on."""

    evaluation: list[Source]
    sequences: int


def measuring_data(
    recipe: Recipe, out: Path, model: PreTrainedModel, task: str, options: MeasuringOptions
) -> CalibrationData:
    """Other data than is trained on, and other than is looked at during training to choose the best checkpoint."""
    shape = image_size(model) if takes_images(recipe) else (0, 0)

    def read(*sources: Source) -> TrainingData:
        chosen = recipe.data.model_copy(update={"validation_limit": 0, **({"validation": sources} if sources else {})})
        return training_data(recipe.model_copy(update={"data": chosen}), out, image_shape=shape)

    found = read(*options.evaluation[:1])
    embeddings: Any = None if takes_images(recipe) else model.get_input_embeddings()
    vocabulary = 0 if embeddings is None else int(embeddings.weight.shape[0])
    collate = collate_for(recipe, found, vocabulary, seed=recipe.seed, imitated=task)
    types = found.tokenizer is not None and wants_token_types(model, found.tokenizer)

    def batched(rows: list[Any]) -> list[dict[str, Any]]:
        made = example_batches(Kept(rows), range(len(rows)), collate, BATCH, labelled=task == "masked")
        if types:
            made = [batch | {"token_type_ids": torch.zeros_like(batch["input_ids"])} for batch in made]
        return made

    trained = _fingerprints(found.rows) if recipe.data.unit != "images" else set()
    asked: list[Any] = []
    counts: dict[str, int] = {}
    if options.evaluation:
        share = -(-options.sequences // len(options.evaluation))
        for place, source in enumerate(options.evaluation):
            rows = (found if place == 0 else read(source)).validation
            some = spread_rows(Kept(_fresh(rows, _places(len(rows), 2 * share), trained)), share)
            counts[source.name] = len(some)
            asked += some
    else:
        watched = recipe.data.validation_limit or len(found.validation)
        fresh = _fresh(found.validation, range(watched, len(found.validation)), trained)
        asked = spread_rows(Kept(fresh), options.sequences)
        counts["held out of the same"] = len(asked)
    if len(asked) < 2:
        raise QuietformerError("nothing is left to measure on; give more text, or other text with --eval-texts")
    if recipe.data.unit == "passages":  # neighbours of like length, so that little is padding
        asked.sort(key=lambda row: len(row["input_ids"]))
    described = found.described | {
        "evaluation": counts,
        "evaluation_sequences": len(asked),
        "calibration_sequences": min(CALIBRATED, len(found.rows)),  # type: ignore[arg-type]
    }
    info = DataInfo.model_validate(described)
    return CalibrationData(batched(asked), drawn_by_seed(found.rows, batched), found.tokenizer, info)


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
    embeddings: Any = None if takes_images(recipe) else model.get_input_embeddings()
    check_data(run, found.fingerprint)  # rows that were trained on must not turn up among those that are asked
    vocabulary = 0 if embeddings is None else int(embeddings.weight.shape[0])
    imitated = task_of(model) if recipe.task == "imitate" else None
    collate = collate_for(recipe, found, vocabulary, seed=0, imitated=imitated)
    labelled = "masked" in (recipe.task, imitated) or recipe.task in ("images", "pairs")
    asked = spread_rows(found.validation, sequences)
    # A stream has no rows to choose from: its validation data is divided.
    source: Any = Kept(asked[1::2]) if isinstance(found.rows, Streamed) else found.rows
    asked = asked[::2] if isinstance(found.rows, Streamed) else asked

    def batched(rows: list[Any]) -> list[dict[str, Any]]:
        return example_batches(Kept(rows), range(len(rows)), collate, BATCH, labelled=labelled)

    described = found.described | {
        "evaluation_sequences": len(asked),
        "calibration_sequences": min(CALIBRATED, len(source)),
    }
    info = DataInfo.model_validate(described)
    return CalibrationData(batched(asked), drawn_by_seed(source, batched), found.tokenizer, info)
