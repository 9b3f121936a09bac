"""What the subcommands share: a word on what is going on."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Self


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


class Steps:
    """A bar on standard error that changes its words as the work goes on: steps("calibrating", 3, 16)."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._bar = Progress(console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task("working", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        self._bar.update(self._task, description=what, completed=done, total=total)


class Told:
    """Lines on standard error, and a bar between them while something is counted."""

    def __init__(self) -> None:
        self._steps: Steps | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def say(self, text: str) -> None:
        self._end()
        print(text, file=sys.stderr, flush=True)

    def tell(self, what: str, done: int, total: int) -> None:
        if self._steps is None:
            self._steps = Steps()
            self._steps.__enter__()
        self._steps(what, done, total)

    def step(self, what: str, done: int = 0, total: int = 0) -> None:
        self.tell(what, done, total)

    def _end(self) -> None:
        if self._steps is not None:
            self._steps.__exit__()
            self._steps = None


@contextlib.contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error; call what it gives with how much is done."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(escape(what), total=total)
        yield lambda done: progress.update(task, completed=done)
