"""Data to calibrate on and other data to evaluate on, for whatever kind of model."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from quietformer.architectures.forward import Batch
from quietformer.data.images import image_batches
from quietformer.data.model_inputs import labelled_images_of, sequences_of, takes_images
from quietformer.data.splits import split_indices, split_sequences
from quietformer.data.text_sequences import text_batches
from quietformer.data.token_labels import mask_tokens
from quietformer.data.tokenizers import padding_of
from quietformer.errors import QuietformerError

CHOICES = 4
"""How many times the calibration data there is to choose from, so that seeds give different batches."""


@dataclass
class CalibrationData:
    """Evaluation batches, always the same, and a function from a seed to calibration batches."""

    evaluation: list[Batch]
    calibration: Callable[[int], list[Batch]]
    tokenizer: Any
    described: dict[str, Any]


def calibration_data(
    model: PreTrainedModel,
    source: str,
    task: str,
    *,
    texts: Path | None = None,
    eval_texts: Path | None = None,
    dataset: str = "",
    images: Path | None = None,
    batches: int = 16,
    batch_size: int = 8,
    evaluation: int = 64,
    length: int | None = None,
) -> CalibrationData:
    """Read everything once; where there is less than asked for, both parts shrink alike."""
    wanted = batches * batch_size
    pool_size = CHOICES * wanted + (0 if eval_texts else evaluation)
    if takes_images(model, texts, dataset, images):
        return _images(model, images, wanted, evaluation, batch_size, pool_size)
    pool, tokenizer, described = sequences_of(model, source, texts, dataset, pool_size, length, 0)
    types = wants_token_types(model, tokenizer)
    embeddings: Any = model.get_input_embeddings()
    if eval_texts is not None:
        asked, _, other = sequences_of(model, source, eval_texts, "", evaluation, described["length"], 0)
        described |= {"evaluation_source": other["source"]}
        wanted, held_out = min(wanted, len(pool)), 0
    else:
        wanted, held_out = _shrink(len(pool), wanted, evaluation)
        asked = split_sequences(pool, calibration=wanted, evaluation=held_out)[1]
    described |= {"calibration_sequences": wanted, "evaluation_sequences": len(asked), "batch_size": batch_size}
    described |= {"to_choose_from": len(pool) - held_out}

    def batched(sequences: list[list[int]], seed: int) -> list[Batch]:
        made = list(text_batches(sequences, pad=padding_of(tokenizer), batch_size=batch_size))
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

    return CalibrationData(batched(asked, 0), calibration, tokenizer, described)


def _images(
    model: PreTrainedModel, images: Path | None, wanted: int, evaluation: int, batch_size: int, pool_size: int
) -> CalibrationData:
    pixels, labels, described = labelled_images_of(model, images, pool_size)
    wanted, held_out = _shrink(len(pixels), wanted, evaluation)

    def batched(indices: list[int]) -> list[Batch]:
        chosen = None if labels is None else labels[indices]
        return list(image_batches(pixels[indices], batch_size=batch_size, labels=chosen))

    def calibration(seed: int) -> list[Batch]:
        return batched(split_indices(len(pixels), calibration=wanted, evaluation=held_out, seed=seed)[0])

    asked = split_indices(len(pixels), calibration=wanted, evaluation=held_out)[1]
    described |= {"calibration_sequences": wanted, "evaluation_sequences": held_out, "batch_size": batch_size}
    return CalibrationData(batched(asked), calibration, None, described)


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
