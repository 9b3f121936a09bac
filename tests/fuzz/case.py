"""What is damaged, by which command it is read, and what must come of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any


class Expected(Enum):
    """What a command may make of damage."""

    REFUSED = "refused"
    """Nothing but one line and exit code 2."""
    SAME = "refused, or the same result"
    ANY = "refused, or a result"
    """The damage is another valid input: nobody can know that it was meant otherwise."""


@dataclass(frozen=True)
class Subject:
    """Something that is read: made in a folder, read by a command, which leaves a result to compare."""

    name: str
    prepare: Callable[[Path, Path], None]  # originals, place
    arguments: Callable[[Path], list[str]]
    result: Callable[[Path], Any]
    call: Callable[[Path], None] | None = None
    """What is done in Python in the place of a command; its errors are ours."""


@dataclass(frozen=True)
class Damage:
    """One class of damage to one subject."""

    subject: Subject
    name: str
    expected: Expected
    apply: Callable[[Path, random.Random], list[str] | None]
    """Damages what is in the folder; may return other arguments than the subject's."""

    @property
    def title(self) -> str:
        return f"{self.subject.name}: {self.name}"


EVERY: dict[str, Damage] = {}


def damage(subject: Subject, name: str, expected: Expected) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function of (folder, draw) as a class of damage."""

    def register(function: Callable[[Path, random.Random], list[str] | None]) -> Callable[..., Any]:
        made = Damage(subject, name, expected, function)
        assert made.title not in EVERY
        EVERY[made.title] = made
        return function

    return register
