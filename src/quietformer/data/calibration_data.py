"""Data to calibrate on and other data to evaluate on, for whatever kind of model."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from quietformer.architectures.forward import Batch
from quietformer.config.options.data import CalibrationOptions
from quietformer.config.tasks import MeasuredTask
from quietformer.data.batches_from_options import labelled_images_of, sequences_of, takes_images
from quietformer.data.calibration_split import split_indices, split_sequences
from quietformer.data.image_batches import image_batches
from quietformer.data.text_batches import text_batches
from quietformer.data.token_labels import mask_tokens
from quietformer.data.tokenizers import padding_of
from quietformer.errors import QuietformerError
from quietformer.results.data import DataInfo

CHOICES = 4
"""How many times the calibration data there is to choose from, so that seeds give different batches."""


@dataclass
class CalibrationData:
    """Evaluation batches, always the same, and a function from a seed to calibration batches."""

    evaluation: list[Batch]
    calibration: Callable[[int], list[Batch]]
    tokenizer: Any
    info: DataInfo


def calibration_data(
    model: PreTrainedModel, source: str, task: MeasuredTask, options: CalibrationOptions = CalibrationOptions()
) -> CalibrationData:
    """Read everything once; where there is less than asked for, both parts shrink alike."""
    wanted = options.calibration * options.batch_size
    pool_size = CHOICES * wanted + (0 if options.eval_texts else options.sequences)
    if takes_images(model, options):
        return _images(model, options, wanted, pool_size)
    pool, tokenizer, info = sequences_of(model, source, options, pool_size)
    types = wants_token_types(model, tokenizer)
    embeddings: Any = model.get_input_embeddings()
    if options.eval_texts is not None:
        other = options.model_copy(update={"texts": options.eval_texts, "dataset": "", "length": info.length})
        asked, _, evaluated = sequences_of(model, source, other, options.sequences)
        info = info.adding(evaluation_source=evaluated.source)
        wanted, held_out = min(wanted, len(pool)), 0
    else:
        wanted, held_out = _shrink(len(pool), wanted, options.sequences)
        asked = split_sequences(pool, calibration=wanted, evaluation=held_out)[1]
    info = info.adding(
        calibration_sequences=wanted, evaluation_sequences=len(asked), batch_size=options.batch_size,
        to_choose_from=len(pool) - held_out,
    )  # fmt: skip

    def batched(sequences: list[list[int]], seed: int) -> list[Batch]:
        made = list(text_batches(sequences, pad=padding_of(tokenizer), batch_size=options.batch_size))
        if types:
            made = [batch | {"token_type_ids": torch.zeros_like(batch["input_ids"])} for batch in made]
        if task != "masked":
            return made
        return mask_tokens(
            made, mask_token=tokenizer.mask_token_id, special_tokens=tokenizer.all_special_ids,
            vocabulary=embeddings.weight.shape[0], seed=seed,
        )  # fmt: skip

    def calibration(seed: int) -> list[Batch]:
        return batched(split_sequences(pool, calibration=wanted, evaluation=held_out, seed=seed)[0], seed + 1)

    return CalibrationData(batched(asked, 0), calibration, tokenizer, info)


def _images(model: PreTrainedModel, options: CalibrationOptions, wanted: int, pool_size: int) -> CalibrationData:
    pixels, labels, info = labelled_images_of(model, options.images, pool_size)
    wanted, held_out = _shrink(len(pixels), wanted, options.sequences)

    def batched(indices: list[int]) -> list[Batch]:
        chosen = None if labels is None else labels[indices]
        return list(image_batches(pixels[indices], batch_size=options.batch_size, labels=chosen))

    def calibration(seed: int) -> list[Batch]:
        return batched(split_indices(len(pixels), calibration=wanted, evaluation=held_out, seed=seed)[0])

    asked = split_indices(len(pixels), calibration=wanted, evaluation=held_out)[1]
    info = info.adding(calibration_sequences=wanted, evaluation_sequences=held_out, batch_size=options.batch_size)
    return CalibrationData(batched(asked), calibration, None, info)


def _shrink(total: int, calibration: int, evaluation: int) -> tuple[int, int]:
    """Less data than asked for is divided in the same proportion."""
    if total >= calibration + evaluation:
        return calibration, evaluation
    held_out = max(2, total * evaluation // (calibration + evaluation))
    if total - held_out < 1:
        raise QuietformerError(
            f"the data makes {total} sequences or images; at least 3 are needed to calibrate and evaluate"
        )
    return total - held_out, held_out


def wants_token_types(model: PreTrainedModel, tokenizer: Any) -> bool:
    """Whether the tokenizer hands the model token types, which an exported graph then takes as well."""
    accepted = inspect.signature(model.forward).parameters
    return "token_type_ids" in tokenizer.model_input_names and "token_type_ids" in accepted
