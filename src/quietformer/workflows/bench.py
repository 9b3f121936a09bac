"""`bench`: latency, throughput and memory of an exported folder on this machine, beside fp32."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch

from quietformer.config.options.bench import BenchOptions
from quietformer.deployment.exported_folder import ExportedFolder, read_exported
from quietformer.deployment.memory_probe import memory_of
from quietformer.deployment.openvino_runtime import OPENVINO_FILE, has_openvino
from quietformer.deployment.processor import instruction_set, processor_name
from quietformer.deployment.runtime_model import Feeds, RuntimeModel
from quietformer.deployment.runtimes import runtimes_asked, size_of
from quietformer.deployment.seq2seq_model import Seq2SeqModel
from quietformer.deployment.shipment import FP32_GRAPHS
from quietformer.deployment.turns import take_turns
from quietformer.errors import CheckpointError, QuietformerError
from quietformer.progress import SILENT, Progress
from quietformer.results.bench import BenchReport, ModelMemory
from quietformer.results.export import LatencyRow, ModelKind, RuntimeName, TimedRun
from quietformer.results.labels import printable
from quietformer.results.provenance import command_line

Opened = tuple[ExportedFolder, ModelKind, RuntimeModel]


def bench(
    folder: str | os.PathLike[str], options: BenchOptions | None = None, progress: Progress = SILENT
) -> BenchReport:
    """Time every model of a folder in turns, on each shape, and measure the memory that each takes."""
    options, folder = options or BenchOptions(), Path(folder)
    threads = options.threads or torch.get_num_threads()
    progress.step(f"loading {folder}")
    models = [(found, kind, found.open(threads)) for found, kind in _files(folder, options)]
    if any(isinstance(model, Seq2SeqModel) for _, _, model in models):
        raise QuietformerError(
            f"{folder} has an encoder and a decoder, which bench does not measure; its report has the latency of both"
        )
    rows = []
    for batch, length in options.sizes():
        progress.step(f"timing batch {batch}" + (f", {length} tokens" if length else ""))
        rows.append(_row(models, batch, length, options.seconds))
    memory = []
    for found, kind, model in models:
        progress.step(f"measuring memory ({found.runtime} {kind})")
        feeds = max((_feeds(found, model, *size) for size in options.sizes()), key=_amount)
        memory.append(_memory(folder, found, kind, feeds if options.memory else None, threads))
    return BenchReport(
        folder=printable(str(folder)),
        model=models[0][0].class_name,
        rows=rows,
        memory=memory,
        threads=threads,
        processor=processor_name(),
        instruction_set=instruction_set(),
        command=command_line("bench", [folder], options.words()),
    )


def _files(folder: Path, options: BenchOptions) -> list[tuple[ExportedFolder, ModelKind]]:
    """What is in the folder and can run here: fp32 first."""
    asked = runtimes_asked(options.runtime)
    found: list[tuple[ExportedFolder, ModelKind]] = []
    fp32 = next((name for name in FP32_GRAPHS if (folder / name).is_file()), None)
    if fp32 is not None:
        found.append((read_exported(folder, "onnxruntime", fp32), "fp32"))
    for runtime in asked:
        if runtime == "openvino" and options.runtime is None and not (folder / OPENVINO_FILE).is_file():
            continue
        try:
            found.append((read_exported(folder, runtime, None), "int8"))
        except CheckpointError:
            only_openvino = runtime == "onnxruntime" and options.runtime is None and (folder / OPENVINO_FILE).is_file()
            if not only_openvino or not has_openvino():
                raise
    return found


def _row(models: list[Opened], batch: int, length: int | None, seconds: float) -> LatencyRow:
    """All models on one shape, in interleaved turns."""
    runs = {}
    for place, (found, _, model) in enumerate(models):
        runs[str(place)] = partial(model.run, _feeds(found, model, batch, length))
    try:
        times = take_turns(runs, rounds=200, seconds=seconds)
    except Exception as error:  # onnxruntime's and OpenVINO's own kinds share no base
        shape = f"{batch}x{length}" if length else f"{batch}"
        raise QuietformerError(
            f"--shapes {shape}: the model does not take it; its longest text may be shorter"
        ) from error
    timed = [
        TimedRun(
            runtime=found.runtime,
            kind=kind,
            precision=model.precision,
            fastest_ms=1e3 * min(times[str(place)]),
            median_ms=1e3 * median(times[str(place)]),
        )
        for place, (found, kind, model) in enumerate(models)
    ]
    return LatencyRow(batch=batch, length=length if "input_ids" in models[0][2].inputs else None, runs=timed)


def _feeds(found: ExportedFolder, model: RuntimeModel, batch: int, length: int | None) -> Feeds:
    """Arrays of this shape: random tokens, all of text; random numbers for images and audio."""
    random = np.random.default_rng(0)
    if "input_ids" in model.inputs:
        size = (batch, length or 128)
        tokens = random.integers(1, max(2, found.vocabulary), size, dtype=np.int64)
        return model.feeds({"input_ids": torch.from_numpy(tokens)})
    name = model.inputs[0]
    sizes = [batch, *(one if one is not None else length or 16_000 for one in model.shapes[name][1:])]
    return {name: random.standard_normal(sizes, dtype=np.float32)}


def _amount(feeds: Feeds) -> int:
    return int(next(iter(feeds.values())).size)


def _memory(folder: Path, found: ExportedFolder, kind: ModelKind, feeds: Feeds | None, threads: int) -> ModelMemory:
    runtime: RuntimeName = found.runtime
    peak = None if feeds is None else memory_of(runtime, found.graph, feeds, threads)
    file = found.graph.relative_to(folder).as_posix()
    return ModelMemory(runtime=runtime, kind=kind, file=file, bytes=size_of(found.graph), peak_bytes=peak)
