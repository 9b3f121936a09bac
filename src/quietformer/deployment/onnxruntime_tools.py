"""What ONNX Runtime's own tools make of an fp32 graph: static and dynamic quantization."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from quietformer.architectures.forward import Batch
from quietformer.deployment.onnx_runtime import OnnxModel
from quietformer.deployment.runtimes import size_of
from quietformer.deployment.silence import silent
from quietformer.deployment.traced_graphs import LARGE
from quietformer.errors import QuietformerError, in_one_line
from quietformer.files import check_place

STATIC, STATIC_PRODUCTS = "ONNX Runtime static", "ONNX Runtime static, products only, per channel"
DYNAMIC, DYNAMIC_CHANNELS = "ONNX Runtime dynamic", "ONNX Runtime dynamic, per channel"
PRODUCTS = ["MatMul", "Gemm", "Conv"]


def static_onnxruntime(float_path: Path, out: Path, batches: Iterable[Batch], *, products_only: bool = False) -> Path:
    """Write what `onnxruntime.quantization.quantize_static` makes: QDQ, uint8 activations, int8 weights, min-max.

    By default it quantizes every operator it knows, weights per tensor. Products only and per channel is its best.
    """
    name = STATIC_PRODUCTS if products_only else STATIC
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
            op_types_to_quantize=PRODUCTS if products_only else None,
            per_channel=products_only,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
            use_external_data_format=large,
        )
    return out


def dynamic_onnxruntime(float_path: Path, out: Path, *, per_channel: bool = False) -> Path:
    """Write what `onnxruntime.quantization.quantize_dynamic` makes, with int8 weights."""
    with _tool(DYNAMIC_CHANNELS if per_channel else DYNAMIC, float_path, out) as (prepared, draft, large):
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantize_dynamic(
            prepared, draft, per_channel=per_channel, weight_type=QuantType.QInt8, use_external_data_format=large
        )
    return out


class _Reader:
    """Batches as onnxruntime's calibration asks for them."""

    def __init__(self, float_path: Path, batches: list[Batch]) -> None:
        feeds = OnnxModel(float_path).feeds
        self.feeds = (feeds(batch) for batch in batches)

    def get_next(self) -> dict[str, Any] | None:
        return next(self.feeds, None)


@contextlib.contextmanager
def _tool(name: str, float_path: Path, out: Path) -> Iterator[tuple[Path, Path, bool]]:
    """Where onnxruntime finds its input prepared and writes to; moved to `out` when all went well."""
    if not float_path.is_file():
        raise QuietformerError(f"{name}: there is no fp32 graph {float_path}; export one first")
    check_place(out)
    large = size_of(float_path) > LARGE
    with tempfile.TemporaryDirectory() as folder, silent():
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
            raise QuietformerError(named_line(name, error)) from error


def _forget_shapes_of_weights(path: Path) -> None:
    """onnxruntime turns weights around for Gemm, leaves their noted shapes as they were and trips over them."""
    import onnx

    graph = onnx.load(path, load_external_data=False)
    weights = {tensor.name for tensor in graph.graph.initializer}
    kept = [value for value in graph.graph.value_info if value.name not in weights]
    del graph.graph.value_info[:]
    graph.graph.value_info.extend(kept)
    onnx.save(graph, path)


def named_line(name: str, error: Exception) -> str:
    """The error in one line that begins with the tool."""
    text = in_one_line(error)
    return text if text.startswith(name) else f"{name}: {text}"
