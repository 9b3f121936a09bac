"""Training data as a function of the seed and the position in the run, and of nothing else.

Order, masks and crops of the example at position i follow from (seed, i) by a counter-based generator. So they are the
same however many processes share the work, whatever the number of loader workers, and after any interruption.
"""

# N examples of the data

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset as TorchIterable
from torch.utils.data import get_worker_info

from quietformer.data.corpora import TEXTS_AT_ONCE, Packer
from quietformer.errors import QuietformerError

ORDER, MASKS, CROPS, BATCHES, PASSAGES = range(5)
"""What a stream of random numbers is for; streams of different purposes share nothing."""

Row = dict[str, Any]


def generator(seed: int, purpose: int, position: int) -> np.random.Generator:
    """The random numbers of one position."""
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, position, purpose]))


class Rows(Protocol):
    """Examples by index, several at a time, each made with the position it is for (None when evaluating)."""

    def __len__(self) -> int: ...

    def take(self, indices: Sequence[int], positions: Sequence[int] | None) -> list[Row]: ...


class TokenRows:
    """Sequences of a datasets.Dataset."""

    def __init__(self, dataset: Any, columns: Sequence[str] = ("input_ids",)) -> None:
        self._dataset = dataset.with_format("numpy")
        self._columns = tuple(columns)

    def __len__(self) -> int:
        return len(self._dataset)

    def take(self, indices: Sequence[int], positions: Sequence[int] | None) -> list[Row]:
        found = self._dataset[list(indices)]
        return [{name: found[name][row] for name in self._columns} for row in range(len(indices))]


class Selection:
    """Some of the rows, in a given order."""

    def __init__(self, rows: Rows, indices: np.ndarray[Any, Any]) -> None:
        self._rows, self.indices = rows, indices

    def __len__(self) -> int:
        return len(self.indices)

    def take(self, indices: Sequence[int], positions: Sequence[int] | None) -> list[Row]:
        return self._rows.take([int(self.indices[index]) for index in indices], positions)


def hold_out(rows: Rows, count: int, what: str) -> tuple[Selection, Selection]:
    """The rows to train on and `count` others to validate on, always the same ones."""
    total = len(rows)
    if total <= count:
        raise QuietformerError(
            f"the data makes {total} {what} and data.hold_out keeps {count} of them; give more data, or a smaller data.hold_out"
        )
    order = generator(0, ORDER, 0).permutation(total)
    return Selection(rows, np.sort(order[count:])), Selection(rows, order[:count])


class Positions(TorchDataset[Row]):
    """Position i of a run: epoch i // N, and in it the place i % N of that epoch's order."""

    def __init__(self, rows: Rows, total: int, seed: int) -> None:
        self._rows, self._total, self._seed = rows, total, seed
        self._orders: dict[int, np.ndarray[Any, Any]] = {}

    def __len__(self) -> int:
        return self._total

    def __getitem__(self, position: int) -> Row:
        return self.__getitems__([position])[0]

    def __getitems__(self, positions: list[int]) -> list[Row]:
        """What a DataLoader asks for, a batch at a time."""
        found = self._rows.take([self._index(position) for position in positions], positions)
        return [row | {"position": position} for row, position in zip(found, positions, strict=True)]

    def _index(self, position: int) -> int:
        epoch, place = divmod(position, self._an_epoch)
        if epoch not in self._orders:
            # A batch may reach from one epoch into the next; older orders are not needed again.
            self._orders = {key: order for key, order in self._orders.items() if key == epoch - 1}
            self._orders[epoch] = self._order(epoch)
        return int(self._orders[epoch][place])

    @property
    def _an_epoch(self) -> int:
        return len(self._rows)

    def _order(self, epoch: int) -> np.ndarray[Any, Any]:
        """The rows of an epoch, as they are taken."""
        return generator(self._seed, ORDER, epoch).permutation(len(self._rows))


class InOrder(TorchDataset[Row]):
    """Rows to evaluate on, one after another; their positions are their indices."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Row:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[Row]:
        return [row | {"position": index} for row, index in zip(self._rows.take(indices, None), indices, strict=True)]


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
