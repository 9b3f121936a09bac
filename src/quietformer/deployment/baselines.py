"""What others would give on the same model and data: onnxruntime's own quantization, and SmoothQuant-style migration."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import logging
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from torch import nn
from transformers import PreTrainedModel

from quietformer.analysis.evaluate import Reference, Run
from quietformer.analysis.task_quality import evaluate_on
from quietformer.architectures.forward import Batch, model_inputs
from quietformer.config.quantization import QuantSpec
from quietformer.data.calibration_data import CalibrationData
from quietformer.deployment.onnx_export import LARGE
from quietformer.deployment.onnx_graph import floating_graph
from quietformer.deployment.onnx_runtime import OnnxModel
from quietformer.deployment.torch_program import marked_program, output_name
from quietformer.errors import QuietformerError, in_one_line
from quietformer.files import check_place
from quietformer.progress import SILENT, Progress
from quietformer.quant.calibration import calibrate_, dequantize_, quantize_, set_mode_
from quietformer.quant.insertion import quantizers
from quietformer.quant.smoothquant_sites import published_sites
from quietformer.results.export import BaselineRow
from quietformer.transforms.smoothquant import migrate_

STATIC, STATIC_CHANNELS, DYNAMIC = "onnxruntime static", "onnxruntime static, per channel", "onnxruntime dynamic"

SMOOTH, PUBLISHED = "SmoothQuant-style, every tensor", "SmoothQuant-style, as published"
ALPHA = 0.5
"""How much of the outliers SmoothQuant migrates into weights, as it was published."""

_EVERYTHING = (
    "weights and all that its products, adds, norms and lookups read and give, by the smallest and largest value"
)


def static_onnxruntime(float_path: Path, out: Path, batches: Iterable[Batch], *, per_channel: bool = False) -> Path:
    """Write what `onnxruntime.quantization.quantize_static` makes: QDQ, uint8 activations, int8 weights, min-max."""
    name = STATIC_CHANNELS if per_channel else STATIC
    batches = list(batches)
    if not batches:
        raise QuietformerError(f"{name}: there are no batches to calibrate on; give some text or images")
    with _tool(name, float_path, out) as (prepared, draft, large):
        from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

        quantize_static(
            prepared,
            draft,
            _Reader(float_path, batches),
            quant_format=QuantFormat.QDQ,
            per_channel=per_channel,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
            use_external_data_format=large,
        )
    return out


def dynamic_onnxruntime(float_path: Path, out: Path) -> Path:
    """Write what `onnxruntime.quantization.quantize_dynamic` makes, with int8 weights."""
    with _tool(DYNAMIC, float_path, out) as (prepared, draft, large):
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantize_dynamic(prepared, draft, weight_type=QuantType.QInt8, use_external_data_format=large)
    return out


def compare_baselines(
    model: PreTrainedModel, data: CalibrationData, reference: Reference, spec: QuantSpec, progress: Progress = SILENT
) -> list[BaselineRow]:
    """A row for each baseline, whether it works or not; the model, quantized or not, is left as it is.

    Of the spec the bits, estimators and channels are used; its rules are the user's own remedy, and no part of a baseline.
    """
    calibration, table = data.calibration(0), _Table(data, reference, progress)
    plain = QuantSpec(**(dict(spec) | {"rules": ()}))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        graph = functools.cache(lambda: _write_fp32(model, calibration, folder / "fp32.onnx"))

        def static(per_channel: bool) -> _Made:
            make = functools.partial(static_onnxruntime, graph(), folder / "static.onnx", calibration)
            return _from_file(lambda: make(per_channel=per_channel))

        def dynamic() -> _Made:
            return _from_file(functools.partial(dynamic_onnxruntime, graph(), folder / "dynamic.onnx"))

        table.add(STATIC, f"8 bits for {_EVERYTHING} in calibration", lambda: static(False))
        table.add(STATIC_CHANNELS, "the same with one scale for each output channel of a weight", lambda: static(True))
        table.add(
            DYNAMIC,
            "8 bits for weights of projections and embeddings, and for what projections read, by its range in each call; the "
            "rest in fp32",
            dynamic,
        )
    migrated = functools.cache(lambda: _migrated(model, calibration, plain, ALPHA))
    table.add(
        SMOOTH,
        f"{spec.label} at every tensor that Quietformer quantizes, outliers migrated with alpha {ALPHA:g}; simulated",
        migrated,
    )
    table.add(
        PUBLISHED,
        f"{spec.label} for weights and inputs of projections and for inputs of attention's two products, migrated with alpha "
        f"{ALPHA:g}; norms, residual adds and activation functions in fp32; simulated",
        lambda: _as_published_(migrated(), calibration[0]),
    )
    return table.rows


@dataclass
class _Made:
    """A quantized model that can be evaluated, what it took to make, and the size of its file if it has one."""

    model: nn.Module | Run
    seconds: float
    bytes: int | None = None


@dataclass
class _Table:
    """Rows that do not stop each other."""

    data: CalibrationData
    reference: Reference
    progress: Progress
    rows: list[BaselineRow] = field(default_factory=list)

    def add(self, name: str, what: str, make: Callable[[], _Made]) -> None:
        self.progress.step(name)
        try:
            made = make()
            found = evaluate_on(made.model, self.data, self.reference)
            row = BaselineRow(name=name, what=what, metrics=found.metrics, bytes=made.bytes, seconds=made.seconds)
        except Exception as error:  # whatever it is, the other baselines are still worth having
            row = BaselineRow(name=name, what=what, error=_line(name, error))
        self.rows.append(row)


class _Reader:
    """Batches as onnxruntime's calibration asks for them."""

    def __init__(self, float_path: Path, batches: list[Batch]) -> None:
        feeds = OnnxModel(float_path).feeds
        self.feeds = (feeds(batch) for batch in batches)

    def get_next(self) -> dict[str, Any] | None:
        return next(self.feeds, None)


def _write_fp32(model: PreTrainedModel, batches: list[Batch], path: Path) -> Path:
    if not batches:
        raise QuietformerError("there are no batches to calibrate on; give some text or images")
    # Two sequences: of one the exporter would make a constant.
    example = {name: torch.cat([tensor, tensor])[:2] for name, tensor in model_inputs(batches[0]).items()}
    graph = floating_graph(marked_program(model, example, output_name(model, example)))
    large = sum(value.const_value.nbytes for value in graph.graph.initializers.values() if value.const_value) > LARGE
    ir.save(graph, path, external_data=f"{path.name}.data" if large else None)
    return path


def _from_file(write: Callable[[], Path]) -> _Made:
    start = time.perf_counter()
    path = write()
    return _Made(OnnxModel(path), time.perf_counter() - start, _bytes(path))


def _migrated(model: PreTrainedModel, batches: list[Batch], spec: QuantSpec, alpha: float) -> _Made:
    start = time.perf_counter()
    mine = copy.deepcopy(model)
    if quantizers(mine):
        dequantize_(mine)
    migrate_(mine, batches, alpha)
    quantize_(mine, spec, batches[0])
    calibrate_(mine, batches)
    return _Made(mine, time.perf_counter() - start)


def _as_published_(made: _Made, example: Batch) -> _Made:
    assert isinstance(made.model, PreTrainedModel)
    set_mode_(made.model, "pass", set(quantizers(made.model)) - published_sites(made.model, example))
    return made


@contextlib.contextmanager
def _tool(name: str, float_path: Path, out: Path) -> Iterator[tuple[Path, Path, bool]]:
    """Where onnxruntime finds its input prepared and writes to; moved to `out` when all went well."""
    if not float_path.is_file():
        raise QuietformerError(f"{name}: there is no fp32 graph {float_path}; export one first")
    check_place(out)
    large = _bytes(float_path) > LARGE
    with tempfile.TemporaryDirectory() as folder, _silent():
        prepared, draft = Path(folder) / "prepared.onnx", Path(folder) / "out" / out.name
        draft.parent.mkdir()
        try:
            from onnxruntime.quantization.shape_inference import quant_pre_process

            # Without it weights that the graph transposes first would stay in fp32. Shapes by symbols fail on
            # graphs whose length is free, and onnx's own inference suffices.
            quant_pre_process(
                str(float_path), str(prepared), skip_symbolic_shape=True, save_as_external_data=large,
                all_tensors_to_one_file=large, external_data_location=f"{prepared.name}.data" if large else None,
            )  # fmt: skip
            _forget_shapes_of_weights(prepared)
            yield prepared, draft, large
            for path in draft.parent.iterdir():  # graphs past 2 GB have a second file
                shutil.move(path, out.parent / path.name)
        except ImportError as error:
            raise QuietformerError(f"{name} needs onnxruntime; pip install quietformer[onnx] ({error})") from error
        except Exception as error:  # onnxruntime's kinds share no base
            raise QuietformerError(_line(name, error)) from error


def _forget_shapes_of_weights(path: Path) -> None:
    """onnxruntime turns weights around for Gemm, leaves their noted shapes as they were and trips over them."""
    import onnx

    graph = onnx.load(path, load_external_data=False)
    weights = {tensor.name for tensor in graph.graph.initializer}
    kept = [value for value in graph.graph.value_info if value.name not in weights]
    del graph.graph.value_info[:]
    graph.graph.value_info.extend(kept)
    onnx.save(graph, path)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """onnxruntime recommends preparations that were made, and prints what it cannot infer."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def _line(name: str, error: Exception) -> str:
    text = in_one_line(error)
    return text if text.startswith(name) else f"{name}: {text}"


def _bytes(path: Path) -> int:
    """With the file beside it that weights past 2 GB are in."""
    return sum(file.stat().st_size for file in (path, path.with_name(f"{path.name}.data")) if file.exists())
