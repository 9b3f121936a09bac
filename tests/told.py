"""Progress that remembers what it was told."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Remembered:
    """A `Progress` for tests."""

    said: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.said.append(text)

    def step(self, what: str, done: int = 0, total: int = 0) -> None:
        self.steps.append(what)
