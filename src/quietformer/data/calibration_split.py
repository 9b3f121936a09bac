"""Calibration data apart from evaluation data."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from quietformer.errors import QuietformerError

T = TypeVar("T")


def split_sequences(
    sequences: Sequence[T], *, calibration: int, evaluation: int, seed: int = 0
) -> tuple[list[T], list[T]]:
    """So many sequences or images to calibrate on and others to evaluate on; `seed` chooses the former only."""
    for_calibration, for_evaluation = split_indices(
        len(sequences), calibration=calibration, evaluation=evaluation, seed=seed
    )
    return [sequences[index] for index in for_calibration], [sequences[index] for index in for_evaluation]


def split_indices(total: int, *, calibration: int, evaluation: int, seed: int = 0) -> tuple[list[int], list[int]]:
    """The places of `split_sequences`, for data that comes in more than one piece, such as pixels and labels."""
    if total < calibration + evaluation:
        raise QuietformerError(
            f"{total} sequences or images are too few: {calibration} to calibrate and {evaluation} others to evaluate "
            f"make {calibration + evaluation}"
        )
    order = list(range(total))
    random.Random(0).shuffle(order)  # noqa: S311 - a choice of passages, not a secret
    chosen, rest = order[:evaluation], order[evaluation:]
    random.Random(seed).shuffle(rest)  # noqa: S311
    return rest[:calibration], chosen
