"""How long things take, measured in turn so that whatever else the machine does falls on all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def latencies(runs: dict[str, Callable[[], object]], *, repeats: int = 15, seconds: float = 4.0) -> dict[str, float]:
    """Median seconds of each, one call of each in turn; fewer repeats of what is slow, but at least three."""
    for run in runs.values():
        run()
    taken: dict[str, list[float]] = {name: [] for name in runs}
    begin = time.perf_counter()
    for repeat in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            taken[name].append(time.perf_counter() - start)
        if repeat >= 2 and time.perf_counter() - begin > seconds:
            break
    return {name: statistics.median(times) for name, times in taken.items()}
