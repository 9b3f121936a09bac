"""What other tools give on the same model and data, beside fp32 and our own export: quality, speed, size and work."""

from __future__ import annotations

import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx_ir as ir
import torch
from torch import nn
from transformers import PreTrainedModel

from quietformer.analysis.evaluate import Reference, Run
from quietformer.analysis.task_quality import evaluate_on
from quietformer.architectures.forward import Batch, model_inputs
from quietformer.config.quantization import QuantSpec
from quietformer.data.calibration_data import CalibrationData
from quietformer.deployment.latency import threads_of_torch
from quietformer.deployment.onnx_graph import floating_graph
from quietformer.deployment.onnx_runtime import OnnxModel
from quietformer.deployment.onnxruntime_tools import (
    DYNAMIC,
    DYNAMIC_CHANNELS,
    STATIC,
    STATIC_PRODUCTS,
    dynamic_onnxruntime,
    named_line,
    static_onnxruntime,
)
from quietformer.deployment.openvino_runtime import OpenVinoModel, write_openvino
from quietformer.deployment.other_tools import (
    ALPHA,
    GROUP,
    NNCF_BITS,
    nearest_model,
    smoothquant_model,
    torchao_model,
    write_nncf,
    write_nncf_weights,
)
from quietformer.deployment.runtime_model import RuntimeModel
from quietformer.deployment.runtimes import F32, runtime_model, size_of
from quietformer.deployment.torch_program import marked_program, output_name
from quietformer.deployment.traced_graphs import LARGE
from quietformer.deployment.turns import take_turns
from quietformer.errors import QuietformerError
from quietformer.progress import SILENT, Progress
from quietformer.results.export import TITLES, BaselineRow, RuntimeDetails

FP32, FP32_OPENVINO = "fp32, ONNX Runtime", "fp32 file, OpenVINO"
NNCF, TORCHAO, SMOOTH = "NNCF, OpenVINO", "torchao dynamic", "SmoothQuant, simulated"
NNCF_WEIGHTS, NEAREST = "NNCF, 4-bit weights, fp32 activations", "Round to nearest, simulated"

TOLD = "told to compute in f32 between integer products"

SECONDS = 12.0
"""For the turns of all tools together."""


@dataclass(frozen=True)
class OwnExport:
    """What this library made of the model: its folder, what is in it, and the seconds it took."""

    folder: Path
    runtimes: Sequence[RuntimeDetails]
    spec: QuantSpec
    seconds: float
    threads: int


@dataclass(frozen=True)
class Made:
    """A model that can be evaluated; `timed` is none for what is only simulated."""

    model: nn.Module | Run
    runtime: str | None
    bytes: int | None = None
    timed: bool = True
    seconds: float | None = None


def compare_baselines(
    model: PreTrainedModel, data: CalibrationData, reference: Reference, ours: OwnExport, progress: Progress = SILENT
) -> list[BaselineRow]:
    """A row for each tool, whether it works or not; the model, quantized or not, is left as it is."""
    calibration = data.calibration(0)
    table = _Table(data, reference, progress)
    with tempfile.TemporaryDirectory() as name, threads_of_torch(ours.threads):
        tools = _Tools(model, calibration, Path(name), ours.threads)
        table.add(FP32, "the fp32 graph that all tools start from", tools.fp32)
        table.add(FP32_OPENVINO, "the same in OpenVINO, in the precision that it chooses", tools.fp32_in_openvino)
        for one in ours.runtimes:
            told, name = f"{ours.spec.label} by this export", f"Quietformer, {TITLES[one.runtime]}"
            table.add(name, told, functools.partial(_own, ours, one, None), ours=True)
            if table.chose_less_than_f32():
                table.add(f"{name}, f32", f"{told}, {TOLD}", functools.partial(_own, ours, one, F32), ours=True)
        table.add(
            NNCF,
            "weights and inputs of products by nncf.quantize for transformers, with its SmoothQuant and bias correction",
            functools.partial(tools.nncf, None),
        )
        if table.chose_less_than_f32():
            table.add(f"{NNCF}, f32", f"the same, {TOLD}", functools.partial(tools.nncf, F32))
        table.add(
            STATIC,
            "8 bits for weights and all that its products, adds, norms and lookups read and give, by the smallest and largest "
            "value in calibration: its default",
            functools.partial(tools.static, products_only=False),
        )
        table.add(
            STATIC_PRODUCTS,
            "only products, with one scale for each output channel of a weight: its best",
            functools.partial(tools.static, products_only=True),
        )
        dynamic = (
            "8 bits for weights of projections and embeddings, and for what projections read, by its range in each call"
        )
        table.add(DYNAMIC, dynamic, functools.partial(tools.dynamic, per_channel=False))
        table.add(
            DYNAMIC_CHANNELS,
            "the same with one scale for each output channel of a weight",
            functools.partial(tools.dynamic, per_channel=True),
        )
        table.add(TORCHAO, "Int8DynamicActivationInt8WeightConfig: linear layers, one range per token", tools.torchao)
        if ours.spec.weight_bits < 8:
            _add_few_bits(table, tools, ours.spec.weight_bits)
        table.add(
            SMOOTH,
            f"{ours.spec.label} for weights and inputs of products, outliers migrated with alpha {ALPHA:g}; not timed",
            lambda: Made(smoothquant_model(model, calibration, ours.spec), "simulated", timed=False),
        )
        if min(ours.spec.weight_bits, ours.spec.activation_bits) < 8:
            table.add(
                NEAREST,
                f"{ours.spec.label} for weights and inputs of products, every value to the nearest of its grid; not timed",
                lambda: Made(nearest_model(model, calibration, ours.spec), "simulated", timed=False),
            )
        return table.timed()


def _add_few_bits(table: _Table, tools: _Tools, bits: int) -> None:
    """The tools that have weights of fewer bits; one of them for weights alone."""
    told = f"Int8DynamicActivationIntxWeightConfig: the same with {bits}-bit weights, one scale per group of {GROUP}"
    table.add(f"{TORCHAO}, {bits}-bit weights", told, functools.partial(tools.torchao, bits))
    if bits == NNCF_BITS:
        told = "weights by nncf.compress_weights, symmetric; products are computed in floating point"
        for name, group in ((NNCF_WEIGHTS, None), (f"{NNCF_WEIGHTS}, groups of {GROUP}", GROUP)):
            table.add(name, told, functools.partial(tools.nncf_weights, group))


def _own(ours: OwnExport, one: RuntimeDetails, precision: str | None) -> Made:
    if one.error is not None:
        raise QuietformerError(one.error)
    made = runtime_model(one.runtime, ours.folder, threads=ours.threads, precision=precision)
    return Made(made, _with_precision(made, TITLES[one.runtime]), one.bytes, seconds=ours.seconds)


def _with_precision(model: RuntimeModel, title: str) -> str:
    return f"{title}, {model.precision}"


class _Tools:
    """Every tool on one model, calibration data and fp32 graph; files are written into a folder."""

    def __init__(self, model: PreTrainedModel, calibration: list[Batch], folder: Path, threads: int) -> None:
        self.model, self.calibration, self.folder, self.threads = model, calibration, folder, threads

    @functools.cached_property
    def graph(self) -> Path:
        return write_fp32(self.model, self.calibration, self.folder / "fp32.onnx")

    def fp32(self) -> Made:
        return self._in_onnxruntime(self.graph)

    def fp32_in_openvino(self) -> Made:
        path = self.folder / "fp32" / "fp32.xml"
        write_openvino(self.graph, path)
        return self._in_openvino(path)

    @functools.cached_property
    def nncf_file(self) -> tuple[Path, float]:
        """Made once for both precisions, and the seconds that took."""
        start = time.perf_counter()
        path = write_nncf(self.graph, self.folder / "nncf" / "nncf.xml", self.calibration)
        return path, time.perf_counter() - start

    def nncf(self, precision: str | None) -> Made:
        path, seconds = self.nncf_file
        return replace(self._in_openvino(path, precision), seconds=seconds)

    def nncf_weights(self, group: int | None) -> Made:
        path = write_nncf_weights(self.graph, self.folder / f"nncf4-{group}" / "nncf.xml", group)
        return self._in_openvino(path)

    def static(self, *, products_only: bool) -> Made:
        out = self.folder / f"static{products_only:d}.onnx"
        return self._in_onnxruntime(static_onnxruntime(self.graph, out, self.calibration, products_only=products_only))

    def dynamic(self, *, per_channel: bool) -> Made:
        out = self.folder / f"dynamic{per_channel:d}.onnx"
        return self._in_onnxruntime(dynamic_onnxruntime(self.graph, out, per_channel=per_channel))

    def torchao(self, weight_bits: int = 8) -> Made:
        return Made(*torchao_model(self.model, self.calibration[0], weight_bits))

    def _in_onnxruntime(self, path: Path) -> Made:
        made = OnnxModel(path, threads=self.threads)
        return Made(made, _with_precision(made, "ONNX Runtime"), size_of(path))

    def _in_openvino(self, path: Path, precision: str | None = None) -> Made:
        made = OpenVinoModel(path, threads=self.threads, precision=precision)
        return Made(made, _with_precision(made, "OpenVINO"), size_of(path))


@dataclass
class _Table:
    """Rows that do not stop each other; speed is measured at the end, all taking turns."""

    data: CalibrationData
    reference: Reference
    progress: Progress
    rows: list[BaselineRow] = field(default_factory=list)
    runs: dict[str, Callable[[], object]] = field(default_factory=dict)

    def add(self, name: str, what: str, make: Callable[[], Made], *, ours: bool = False) -> None:
        self.progress.step(name)
        start = time.perf_counter()
        try:
            made = make()
            seconds = time.perf_counter() - start if made.seconds is None else made.seconds
            found = evaluate_on(made.model, self.data, self.reference)
            row = BaselineRow(
                name=name,
                what=what,
                runtime=made.runtime,
                ours=ours,
                metrics=found.metrics,
                bytes=made.bytes,
                seconds=seconds,
            )
            if made.timed:
                self.runs[name] = _one_pass(made.model, self.data.evaluation[0])
        except Exception as error:  # whatever it is, the other tools are still worth having
            row = BaselineRow(name=name, what=what, ours=ours, error=named_line(name, error))
        self.rows.append(row)

    def chose_less_than_f32(self) -> bool:
        """Whether the last runtime computes in less by itself, so that it is worth measuring in f32 as well."""
        runtime = self.rows[-1].runtime
        return runtime is not None and not runtime.endswith(F32)

    def timed(self) -> list[BaselineRow]:
        """The rows with their times."""
        self.progress.step("timing all tools in turns")
        times = take_turns(self.runs, seconds=SECONDS)
        return [
            row.model_copy(
                update={"fastest_ms": 1e3 * min(found), "median_ms": 1e3 * statistics.median(found)}
            )
            if (found := times.get(row.name))
            else row
            for row in self.rows
        ]  # fmt: skip


def _one_pass(model: nn.Module | Run, batch: Batch) -> Callable[[], object]:
    inputs = model_inputs(batch)
    if isinstance(model, RuntimeModel):
        return functools.partial(model.run, model.feeds(inputs))

    def run() -> object:
        with torch.no_grad():
            return model(inputs)

    return run


def write_fp32(model: PreTrainedModel, batches: list[Batch], path: Path) -> Path:
    """The graph of the model in fp32, with free batch and length, that the tools start from."""
    if not batches:
        raise QuietformerError("there are no batches to calibrate on; give some text or images")
    # Two sequences: of one the exporter would make a constant.
    example = {name: torch.cat([tensor, tensor])[:2] for name, tensor in model_inputs(batches[0]).items()}
    graph = floating_graph(marked_program(model, example, output_name(model, example)))
    large = sum(value.const_value.nbytes for value in graph.graph.initializers.values() if value.const_value) > LARGE
    ir.save(graph, path, external_data=f"{path.name}.data" if large else None)
    return path
