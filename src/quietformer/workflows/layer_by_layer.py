"""`export --layer-by-layer`: INT8 of a model that does not fit into memory, one block at a time."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import torch
from torch import nn
from transformers import PreTrainedModel

from quietformer.analysis.evaluate import Evaluation
from quietformer.architectures.forward import Batch
from quietformer.architectures.layout import output_embeddings
from quietformer.architectures.task import task_of
from quietformer.config.options.layer_by_layer import LayerByLayerOptions
from quietformer.data.calibration_data import CalibrationData, calibration_data
from quietformer.deployment.compressed_weights import scheme
from quietformer.deployment.memory_probe import forget_peak, peak_bytes
from quietformer.deployment.shards import ShardWriter
from quietformer.deployment.shipment import plain_config, write_json
from quietformer.errors import QuietformerError
from quietformer.files import check_free, existing, whole_folder
from quietformer.models.blocks_from_disk import ModelOnDisk
from quietformer.models.folder_files import STALE
from quietformer.models.save import copy_processor
from quietformer.progress import SILENT, Progress
from quietformer.results.layer_by_layer import (
    LayerByLayerCost,
    LayerByLayerPlanReport,
    LayerByLayerReport,
    PlannedMemory,
    Smoothing,
    fits,
)
from quietformer.results.quality import spreads
from quietformer.results.quantize import CalibrationRun
from quietformer.workflows.block_by_block import BlockByBlock, Work
from quietformer.workflows.open_once import ModelName, OpenedModel, check_new_folder, command_on
from quietformer.workflows.smoothing_exponent import least_error_exponent

TARGET, REPORT = "compressed-tensors", "report.json"


@dataclass(frozen=True)
class _Prepared:
    """A folder, its model without numbers, the data, and what is to be done."""

    opened: OpenedModel
    disk: ModelOnDisk
    data: CalibrationData
    work: Work

    @property
    def model(self) -> PreTrainedModel:
        return self.opened.model


def export_layer_by_layer(
    model: ModelName,
    out: str | os.PathLike[str],
    options: LayerByLayerOptions | None = None,
    progress: Progress = SILENT,
) -> LayerByLayerReport:
    """Write a model folder as INT8 for compressed-tensors with the weights of one block in memory at a time.

    Ranges, smoothing and integers are those of the model as a whole, bit for bit.
    """
    options, out, begin = options or LayerByLayerOptions(), Path(out), time.perf_counter()
    prepared = _prepare(model, out, options, progress)
    forget_peak()
    with whole_folder(out, stale=(*STALE, REPORT)) as draft, torch.no_grad():
        scratch = draft / "hidden_states"
        engine = BlockByBlock(prepared.disk, prepared.model, prepared.work, scratch, progress)
        check_free(out, _bytes_to_write(prepared, engine), "what is written layer by layer")
        writer = ShardWriter(draft, engine.blocks + 1)
        engine.front()
        for index in range(engine.blocks):
            engine.block(index, writer)
        reference, found = engine.tail(writer, prepared.opened.task)
        shutil.rmtree(scratch)
        described = scheme(prepared.work.spec, prepared.model, engine.pairs)
        write_json(draft / "config.json", plain_config(prepared.model) | {"quantization_config": described})
        copy_processor(prepared.model, None, draft)
        cost = LayerByLayerCost(
            seconds=time.perf_counter() - begin,
            seconds_by_step=dict(engine.seconds),
            weights_read=prepared.disk.bytes,
            weights_written=writer.bytes,
            peak_memory=peak_bytes() or None,
        )
        command = command_on([model], "export", options, [out, "--layer-by-layer"])
        report = _report(prepared, engine, reference.evaluation, found).model_copy(
            update={"cost": cost, "command": command}
        )
        report.save(draft / REPORT)
    return report


def plan_layer_by_layer(
    model: ModelName,
    out: str | os.PathLike[str],
    options: LayerByLayerOptions | None = None,
    progress: Progress = SILENT,
) -> LayerByLayerPlanReport:
    """Memory, disk space and time of `export_layer_by_layer`, from a trial on the first block; OUT is not written."""
    options, out = options or LayerByLayerOptions(), Path(out)
    prepared = _prepare(model, out, options, progress)
    work = prepared.work
    forget_peak()
    libraries, free = psutil.Process().memory_info().rss, psutil.virtual_memory().available
    one = replace(work, calibration=work.calibration[:1], evaluation=work.evaluation[:1])
    with tempfile.TemporaryDirectory() as place, torch.no_grad():
        engine = BlockByBlock(prepared.disk, prepared.model, one, Path(place) / "hidden_states", progress)
        begin = time.perf_counter()
        engine.front()
        front = time.perf_counter() - begin
        engine.seconds.clear()
        engine.block(0, ShardWriter(Path(place), engine.blocks + 1))
        seconds = _seconds(engine, work, front, prepared.model)
    parts = [_size(block.module) for block in engine.plain.blocks]
    outside = _size(prepared.model) - sum(parts)
    logits = _logits(prepared.model, work.evaluation[0])
    memory = PlannedMemory(
        # After the blocks: the rest with the logits of a batch, and at last with the copy of it that is written.
        peak=max(peak_bytes(), libraries + outside + max(outside, 2 * logits)),
        libraries=libraries,
        largest_part=max(outside, *parts),
        logits=logits,
        free=free,
    )
    return LayerByLayerPlanReport(
        model=prepared.opened.info,
        blocks=engine.blocks,
        weights=prepared.disk.bytes,
        memory=memory,
        disk=_bytes_to_write(prepared, engine),
        disk_free=shutil.disk_usage(existing(out)).free,
        seconds=seconds,
        command=command_on([model], "export", options, [out, "--layer-by-layer", "--plan"]),
    )


def too_large(model: str) -> bool:
    """Whether the weights of a model folder are more than fits into free memory as a whole."""
    stored = sum(path.stat().st_size for path in Path(model).glob("*.safetensors")) if Path(model).is_dir() else 0
    return not fits(stored, psutil.virtual_memory().available)


def _prepare(model: ModelName, out: Path, options: LayerByLayerOptions, progress: Progress) -> _Prepared:
    """Everything that can be told before the work."""
    check_new_folder(out, model, overwrite=options.overwrite)
    if isinstance(model, PreTrainedModel):
        raise QuietformerError("an open model is in memory already; export it as a whole, or give its folder")
    if other := [name for name in options.targets if name != TARGET]:
        raise QuietformerError(f"--for {other[0]}: only {TARGET} is written layer by layer; leave out --for {other[0]}")
    spec = options.spec()
    for device in options.device_map:
        _check_device(device)
    name = os.fspath(model)
    progress.step(f"reading {name}")
    disk = ModelOnDisk(name, trust_remote_code=options.trust_remote_code)
    hollow = disk.hollow()
    opened = OpenedModel(hollow, name, task_of(hollow))
    data = calibration_data(hollow, name, opened.task, options)
    alpha = least_error_exponent(spec) if options.search else None
    work = Work(spec, alpha, data.calibration(0), data.evaluation, options.device_map or ("cpu",))
    return _Prepared(opened, disk, data, work)


def _check_device(name: str) -> None:
    try:
        torch.ones(1, device=name).cpu()  # the meta device takes a number and does not give it back
    except Exception as error:  # torch raises whatever the backend does
        known = re.fullmatch(r"[a-z]+(:[0-9]+)?", name)
        why = "this machine or this torch does not have it" if known else "write cpu, cuda:0 and the like"
        raise QuietformerError(f"--device-map: {name[:40]!r} cannot be used: {why}") from error


def _report(prepared: _Prepared, engine: BlockByBlock, reference: Evaluation, found: Evaluation) -> LayerByLayerReport:
    done, smoothed = engine.smoothed, prepared.work.alpha is not None
    metrics = found.metrics
    return LayerByLayerReport(
        model=prepared.opened.info,
        label=f"{prepared.work.spec.label}{', smoothed' if done.folded else ''}",
        spec=prepared.work.spec,
        plan=engine.plan.info(),
        fp32=reference.metrics,
        runs=[CalibrationRun(seed=0, metrics=metrics)],
        quantized=spreads([metrics]),
        data=prepared.data.info,
        blocks=engine.blocks,
        integer_layers=len(engine.pairs),
        devices=list(prepared.work.devices),
        smoothing=Smoothing(groups=done.folded, left=len(done.left), exponents=done.alphas) if smoothed else None,
        cost=LayerByLayerCost(seconds=0.0, seconds_by_step={}, weights_read=0, weights_written=0, peak_memory=None),
        **dict(reference.yardstick),
    )


# ---- what it will take
def _size(module: nn.Module) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def _bytes_to_write(prepared: _Prepared, engine: BlockByBlock) -> int:
    """The folder, and the hidden states of all batches on their way."""
    whole = _size(prepared.model)
    for name in engine.pairs:
        weight = prepared.model.get_submodule(name)._parameters["weight"]
        if weight is not None and weight.is_floating_point():
            whole -= weight.numel() * (weight.element_size() - 1)
    width = getattr(prepared.model.config.get_text_config(), "hidden_size", 0) or 0
    work = prepared.work
    rows = sum(next(iter(batch.values())).numel() for batch in (*work.evaluation, *work.evaluation, *work.calibration))
    rows += sum(next(iter(batch.values())).numel() for batch in work.calibration) if engine.groups else 0
    return whole + rows * width * 4


def _logits(model: PreTrainedModel, batch: Batch) -> int:
    head = output_embeddings(model)
    weight = None if head is None else head._parameters.get("weight")
    return 0 if weight is None else next(iter(batch.values())).numel() * len(weight) * 4


def _seconds(engine: BlockByBlock, work: Work, front: float, model: PreTrainedModel) -> float:
    """From the first block and one batch of each kind to all of them."""

    def passes(calibration: Sequence[Batch], evaluation: Sequence[Batch]) -> int:
        smoothing = len(calibration) + 1 if engine.groups else 0
        return 2 * len(evaluation) + len(calibration) + smoothing

    seconds = engine.seconds
    a_pass = seconds["running"] / passes(work.calibration[:1], work.evaluation[:1])
    a_block = sum(value for step, value in seconds.items() if step != "running")
    blocks = engine.blocks * (a_block + a_pass * passes(work.calibration, work.evaluation))
    head = output_embeddings(model)
    weight = None if head is None else head._parameters.get("weight")
    ends = 2 * front
    if weight is not None:
        share = weight.numel() / max(1, sum(p.numel() for p in engine.plain.blocks[-1].module.parameters()))
        ends += a_pass * share * (2 * len(work.evaluation) + len(work.calibration))
    return blocks + ends
