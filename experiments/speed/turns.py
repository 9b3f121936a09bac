"""Peers that take turns, so that other work on the machine falls on all alike, and what machine that was."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers


def fastest(
    peers: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Seconds of the fastest turn of each: what is slower was disturbed."""
    return {name: min(times) for name, times in _timed(peers, rounds, clock).items()}


def _timed(
    peers: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float]
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in peers}
    for run in peers.values():  # the first of anything is slow
        run()
    for turn in range(rounds):
        # Whoever comes second finds the caches warm: each is first every other time.
        for name, run in list(peers.items())[:: 1 if turn % 2 == 0 else -1]:
            start = clock()
            run()
            times[name].append(clock() - start)
    return times


def machine() -> dict[str, Any]:
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            name = next(line.partition(":")[2].strip() for line in info if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor()
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"
