"""Text from a file, a dataset or the built-in text, as batches of token sequences."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from quietformer.architectures.forward import Batch
from quietformer.errors import QuietformerError, in_one_line
from quietformer.files import check_regular

DATASET_REMEDY = "give a name of the hub, or a folder of files that are whole"
TEXT_REMEDY = "give plain text in UTF-8, not compressed"

PIECE = 20_000
"""Characters that are tokenised at once."""


def read_texts(path: Path) -> list[str]:
    """The non-empty lines of a text file."""
    check_regular(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise QuietformerError(f"{path} is not there; give a text file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise QuietformerError(f"{path} cannot be read as text: {error}; {TEXT_REMEDY}") from None
    texts = [line.strip() for line in lines if line.strip()]
    if not texts:
        raise QuietformerError(f"{path} holds no text; give a file with a paragraph on each line")
    return texts


def dataset_texts(name: str, *, split: str = "train", column: str = "text") -> Iterator[str]:
    """The texts of a dataset by hub name or local folder, streamed; rows without a text are left out."""
    import datasets

    silence_datasets()
    if Path(name).is_file():
        raise QuietformerError(f"{name} is a file, not a dataset; give it with --texts, or its folder with --dataset")
    try:
        for row in datasets.load_dataset(name, split=split, streaming=True):
            if column not in row:
                raise QuietformerError(f"dataset {name} has no column {column!r}; it has {', '.join(row)}")
            text = row[column]
            if text is not None and not isinstance(text, str):
                raise QuietformerError(
                    f"dataset {name}: column {column!r} holds {type(text).__name__}, not text; give one that holds text"
                )
            if text and text.strip():
                yield text.strip()
    except QuietformerError:
        raise
    except Exception as error:  # the readers' own errors are of many kinds
        raise QuietformerError(f"dataset {name} cannot be read: {in_one_line(error, 200)}; {DATASET_REMEDY}") from error


def silence_datasets() -> None:
    """What datasets has to say, we say in one line."""
    import datasets

    datasets.logging.set_verbosity(logging.CRITICAL)
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()


def token_sequences(
    texts: Iterable[str], tokenizer: Any, *, count: int, length: int, seed: int | None = None
) -> list[list[int]]:
    """`count` sequences of up to `length` tokens with special tokens, from running text; a seed chooses among more of it.

    Of an iterator no more is read than needed.
    """
    before, after = special_tokens(tokenizer)
    room = length - len(before) - len(after)
    if room < 1:
        raise QuietformerError(f"sequences of {length} tokens leave no room for text beside the special tokens")
    wanted = count if seed is None else 4 * count
    running: list[int] = []
    windows: list[list[int]] = []
    for piece in (piece for text in texts for piece in pieces(text)):
        running += tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"]
        whole = min(len(running) // room, wanted - len(windows))
        windows += [running[start : start + room] for start in range(0, whole * room, room)]
        del running[: whole * room]
        if len(windows) >= wanted:
            break
    if not windows and running:
        windows.append(running)
    if not windows:
        raise QuietformerError("the text gives no tokens; choose another text or tokenizer")
    if seed is not None:
        random.Random(seed).shuffle(windows)  # noqa: S311 - a choice of passages, not a secret
    return [[*before, *window, *after] for window in windows[:count]]


def pieces(text: str) -> Iterator[str]:
    """The text in pieces that a tokenizer takes at once, cut before white space where there is some.

    Of a line of many megabytes no more is tokenised than needed, and the cost of a tokenizer grows faster than its text.
    """
    start = 0
    while len(text) - start > PIECE:
        end = start + PIECE
        cut = max(text.rfind(" ", start + PIECE // 2, end), text.rfind("\t", start + PIECE // 2, end))
        end = end if cut < 0 else cut
        yield text[start:end]
        start = end
    yield text[start:] if start else text


def special_tokens(tokenizer: Any) -> tuple[list[int], list[int]]:
    """What this tokenizer puts before and after a text, seen by encoding one both ways."""
    plain = list(tokenizer("word", add_special_tokens=False)["input_ids"])
    whole = list(tokenizer("word")["input_ids"])
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return whole[:start], whole[start + len(plain) :]
    return [], []


def text_batches(sequences: list[list[int]], *, pad: int, batch_size: int) -> Iterator[Batch]:
    """Batches padded to their longest sequence."""
    for start in range(0, len(sequences), batch_size):
        group = sequences[start : start + batch_size]
        longest = max(map(len, group))
        ids = torch.full((len(group), longest), pad, dtype=torch.int64)
        mask = torch.zeros((len(group), longest), dtype=torch.int64)
        for row, tokens in enumerate(group):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            mask[row, : len(tokens)] = 1
        yield {"input_ids": ids, "attention_mask": mask}
