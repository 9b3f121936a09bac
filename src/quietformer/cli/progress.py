"""Progress on a terminal: lines and a bar on standard error."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, Self


@contextlib.contextmanager
def working(what: str, *, show: bool = True) -> Iterator[None]:
    """A spinner on standard error while something takes its time."""
    if not show:
        yield
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(what)):
        yield


class TerminalProgress:
    """Lines on standard error, and a bar between them while something is counted."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def say(self, text: str) -> None:
        self._end()
        print(text, file=sys.stderr, flush=True)

    def step(self, what: str, done: int = 0, total: int = 0) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import Progress

        if self._bar is None:
            console = Console(stderr=True)
            if not console.is_terminal:  # a log has no use for a bar that is wiped out again
                return
            self._bar = Progress(console=console, transient=True)
            self._task = self._bar.add_task("working", total=None)
            self._bar.start()
        self._bar.update(self._task, description=escape(what), completed=done, total=total or None)

    def _end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
