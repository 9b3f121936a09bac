"""Sequences cut from a stream of texts, for data larger than the disk."""

# N examples of the data

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset as TorchIterable
from torch.utils.data import get_worker_info

from quietformer.data.packing import TEXTS_AT_ONCE, Packer
from quietformer.data.row_order import ORDER, Row, generator
from quietformer.errors import QuietformerError


class Streamed(TorchIterable[Row]):
    """Sequences cut from a stream of texts as they come, for ever; the first `skip` are somebody else's."""

    def __init__(self, texts: Any, packer: Packer, *, seed: int, shuffle_buffer: int, skip: int = 0) -> None:
        self._texts, self._packer, self._skip = texts, packer, skip
        self._seed, self._buffer = seed, shuffle_buffer

    def __iter__(self) -> Iterator[Row]:
        if (worker := get_worker_info()) is not None and worker.num_workers > 1:
            raise QuietformerError("a stream is read by one worker; set trainer.dataloader_num_workers to 0 or 1")
        for position, sequence in enumerate(self._sequences()):
            yield {"input_ids": np.asarray(sequence), "position": position}

    def _sequences(self) -> Iterator[list[int]]:
        epoch = 0
        while True:
            count = 0
            # Sequences set aside for validation come from the head of the stream, which is therefore never shuffled.
            head = epoch_texts(self._texts, self._packer)
            for _ in range(self._skip):
                next(head, None)
            if epoch or self._buffer > 1:
                head = _shuffled(head, self._seed, epoch, self._buffer)
            for sequence in head:
                count += 1
                yield sequence
            if not count:
                raise QuietformerError("the stream holds no text beyond what is held out for validation")
            epoch += 1


def epoch_texts(texts: Any, packer: Packer) -> Iterator[list[int]]:
    """The sequences of one pass through a stream, in its order."""
    running: list[int] = []
    for batch in texts.iter(batch_size=TEXTS_AT_ONCE):
        running += packer.tokens(batch["text"])
        used = 0
        for sequence in packer.windows(running):
            used += packer.room
            yield sequence
        running = running[used:]


def _shuffled(sequences: Iterator[list[int]], seed: int, epoch: int, size: int) -> Iterator[list[int]]:
    """Through a buffer from which a random one goes out for each that comes in."""
    draw = generator(seed, ORDER, epoch)
    buffer: list[list[int]] = []
    for sequence in sequences:
        if len(buffer) < size:
            buffer.append(sequence)
            continue
        place = int(draw.integers(size))
        yield buffer[place]
        buffer[place] = sequence
    for place in draw.permutation(len(buffer)):
        yield buffer[int(place)]
