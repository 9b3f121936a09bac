"""What a long piece of work says while it runs: lines to keep, and how far it has come."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Protocol


class Progress(Protocol):
    """Where progress goes: a terminal, a log, a notebook, or nowhere."""

    def say(self, text: str) -> None:
        """A line worth keeping."""

    def step(self, what: str, done: int = 0, total: int = 0) -> None:
        """`done` of `total` units of one piece of work; a total of 0 means that nobody knows how many there are."""


class Silent:
    """Progress that nobody sees: the default of every function."""

    def say(self, text: str) -> None: ...

    def step(self, what: str, done: int = 0, total: int = 0) -> None: ...


SILENT = Silent()
_shown: ContextVar[Progress] = ContextVar("progress", default=SILENT)


@contextlib.contextmanager
def show_progress(progress: Progress) -> Iterator[None]:
    """The verbs of the Python API report to this object inside the block."""
    token = _shown.set(progress)
    try:
        yield
    finally:
        _shown.reset(token)


def shown_progress() -> Progress:
    """The object that `show_progress` has named; by default one that stays silent."""
    return _shown.get()
