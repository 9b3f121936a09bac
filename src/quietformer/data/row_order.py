"""Training data as a function of the seed and the position in the run, and of nothing else.

Order, masks and crops of the example at position i follow from (seed, i) by a counter-based generator. So they are the
same however many processes share the work, whatever the number of loader workers, and after any interruption.
"""

# N examples of the data

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypedDict, cast

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from quietformer.errors import QuietformerError

ORDER, MASKS, CROPS, BATCHES, PASSAGES = range(5)
"""What a stream of random numbers is for; streams of different purposes share nothing."""
Tokens = np.ndarray[Any, Any]


class Row(TypedDict, total=False):
    """One example; which fields it has follows from the task."""

    input_ids: Tokens
    token_type_ids: Tokens
    attention_mask: Tokens
    pixel_values: Tensor
    labels: int
    position: int


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
        rows = [{name: found[name][row] for name in self._columns} for row in range(len(indices))]
        return cast(list[Row], rows)  # the columns are those that the task's rows have


class Selection:
    """Some of the rows, in a given order."""

    def __init__(self, rows: Rows, indices: np.ndarray[Any, Any]) -> None:
        self._rows, self.indices = rows, indices

    def __len__(self) -> int:
        return len(self.indices)

    def take(self, indices: Sequence[int], positions: Sequence[int] | None) -> list[Row]:
        return self._rows.take([int(self.indices[index]) for index in indices], positions)


Count = Callable[[int, int], int]
"""From how many are to be held out, and how many there are, to how many are."""


def as_asked(wanted: int, total: int) -> int:
    return wanted


def at_most_a_third(wanted: int, total: int) -> int:
    """Of little data less is held out, so that most is left to train on."""
    return min(wanted, max(1, total // 3))


def hold_out(rows: Rows, count: int, what: str) -> tuple[Selection, Selection]:
    """The rows to train on and `count` others to validate on, always the same ones."""
    total = len(rows)
    if total <= count:
        raise QuietformerError(
            f"the data makes {total} {what} and data.hold_out keeps {count} of them; give more data, or a smaller "
            "data.hold_out (--set data.hold_out=N)"
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
