"""How long a model takes in each runtime, on a few batch shapes."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from transformers import PreTrainedModel

from quietformer.architectures.forward import Batch
from quietformer.deployment.runtime_model import RuntimeModel
from quietformer.deployment.seq2seq_model import DECODED
from quietformer.deployment.turns import take_turns
from quietformer.quant.calibration import full_precision
from quietformer.results.export import LatencyRow, ModelKind, RuntimeName, TimedRun

SECONDS = 4.0
"""For one batch shape; what is slow gets fewer turns."""


@dataclass(frozen=True)
class Timed:
    """A model in a runtime, set to the threads it is timed with."""

    runtime: RuntimeName
    kind: ModelKind
    model: RuntimeModel


def latency_rows(model: PreTrainedModel, timed: Sequence[Timed], batch: Batch, threads: int) -> list[LatencyRow]:
    """Torch in fp32, beside what is given, in interleaved turns on a few batch shapes."""
    rows = []
    with threads_of_torch(threads):
        for size, length in _shapes(batch):
            piece = _sized(batch, size, length)
            runs: dict[str, Callable[[], object]] = {"torch": partial(_in_fp32, model, piece)}
            for place, one in enumerate(timed):
                runs[str(place)] = partial(one.model.run, one.model.feeds(piece))
            times = take_turns(runs, seconds=SECONDS)
            found = [_timed_run("torch", "fp32", "f32", times["torch"])]
            found += [
                _timed_run(one.runtime, one.kind, one.model.precision, times[str(place)])
                for place, one in enumerate(timed)
            ]
            rows.append(LatencyRow(batch=size, length=length, runs=found))
    return rows


@contextlib.contextmanager
def threads_of_torch(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _timed_run(runtime: RuntimeName, kind: ModelKind, precision: str, times: list[float]) -> TimedRun:
    fastest, median = 1e3 * min(times), 1e3 * statistics.median(times)
    return TimedRun(runtime=runtime, kind=kind, precision=precision, fastest_ms=fastest, median_ms=median)


def _in_fp32(model: PreTrainedModel, batch: Batch) -> None:
    with torch.no_grad(), full_precision(model):
        model(**{name: tensor.to(model.device) for name, tensor in batch.items()})


def _shapes(batch: Batch) -> list[tuple[int, int | None]]:
    if DECODED in batch:
        return [(1, None)]
    if "input_ids" not in batch:
        return [(1, None), (8, None)]
    longest = batch["input_ids"].shape[1]
    return [(1, min(16, longest)), (1, longest), (8, longest)] if longest > 16 else [(1, longest), (8, longest)]


def _sized(batch: Batch, size: int, length: int | None) -> Batch:
    times = -(-size // len(next(iter(batch.values()))))
    piece = {name: tensor.repeat(times, *[1] * (tensor.dim() - 1))[:size] for name, tensor in batch.items()}
    return piece if length is None else {name: tensor[:, :length].contiguous() for name, tensor in piece.items()}
