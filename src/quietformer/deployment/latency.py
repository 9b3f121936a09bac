"""How long things take, measured in turn so that whatever else the machine does falls on all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedModel

from quietformer.architectures.forward import Batch
from quietformer.deployment.onnx_runtime import OnnxModel
from quietformer.quant.calibration import full_precision
from quietformer.results.export import LatencyRow


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


def latency_rows(model: PreTrainedModel, onnx: dict[str, Path], batch: Batch, threads: int | None) -> list[LatencyRow]:
    """Torch in fp32 and ONNX Runtime in fp32 and INT8 on a few batch shapes; `onnx` has the files of the latter two."""
    threads = threads or torch.get_num_threads()
    before = torch.get_num_threads()
    models = {name: OnnxModel(path, threads=threads) for name, path in onnx.items()}
    rows = []
    torch.set_num_threads(threads)
    try:
        for size, length in _shapes(batch):
            piece = _sized(batch, size, length)

            runs: dict[str, Callable[[], object]] = {"torch_fp32": partial(_in_fp32, model, piece)}
            for name, runtime in models.items():
                runs[name] = partial(runtime.session.run, None, runtime.feeds(piece))
            taken = latencies(runs)
            milliseconds = {f"{name}_ms": 1e3 * time for name, time in taken.items()}
            speedup = taken["onnx_fp32"] / taken["onnx_int8"]
            rows.append(LatencyRow(batch=size, length=length, **milliseconds, speedup=speedup))
    finally:
        torch.set_num_threads(before)
    return rows


def _in_fp32(model: PreTrainedModel, batch: Batch) -> None:
    with torch.no_grad(), full_precision(model):
        model(**{name: tensor.to(model.device) for name, tensor in batch.items()})


def _shapes(batch: Batch) -> list[tuple[int, int | None]]:
    if "input_ids" not in batch:
        return [(1, None), (8, None)]
    longest = batch["input_ids"].shape[1]
    return [(1, min(16, longest)), (1, longest), (8, longest)] if longest > 16 else [(1, longest), (8, longest)]


def _sized(batch: Batch, size: int, length: int | None) -> Batch:
    times = -(-size // len(next(iter(batch.values()))))
    piece = {name: tensor.repeat(times, *[1] * (tensor.dim() - 1))[:size] for name, tensor in batch.items()}
    return piece if length is None else {name: tensor[:, :length].contiguous() for name, tensor in piece.items()}
