"""Competitors that take turns, so that whatever else the machine does falls on all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

Runs = Mapping[str, Callable[[], object]]


def take_turns(
    runs: Runs, rounds: int = 15, *, seconds: float | None = None, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of every turn of each, after one to warm up; after so many seconds no new round begins, but there are three."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    begin = time.perf_counter()
    for turn in range(rounds):
        # Whoever comes second finds the caches warm: each is first every other time.
        for name, run in list(runs.items())[:: 1 if turn % 2 == 0 else -1]:
            start = clock()
            run()
            times[name].append(clock() - start)
        if seconds is not None and turn >= 2 and time.perf_counter() - begin > seconds:
            break
    return times
