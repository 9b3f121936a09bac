"""The fastest turn of peers that take turns, and what machine that was."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers

from quietformer.deployment.processor import instruction_set, processor_name
from quietformer.deployment.turns import take_turns


def fastest(
    peers: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Seconds of the fastest turn of each: what is slower was disturbed."""
    return {name: min(times) for name, times in take_turns(peers, rounds, clock=clock).items()}


def machine() -> dict[str, Any]:
    return {
        "processor": f"{processor_name()}, {instruction_set()}",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
