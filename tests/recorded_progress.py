"""Progress that tests can look at."""

from __future__ import annotations


class RecordedProgress:
    """Keeps every line and every step."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.steps: list[tuple[str, int, int]] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def step(self, what: str, done: int = 0, total: int = 0) -> None:
        self.steps.append((what, done, total))
