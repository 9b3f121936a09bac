"""OpenVINO: an IR written from an ONNX file, and a model file running in it, called as a model is."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from quietformer.architectures.forward import Batch
from quietformer.deployment.openvino_state import ROWS, keep_past_as_state_
from quietformer.deployment.runtime_model import Array, Feeds, RuntimeModel, Steps
from quietformer.errors import QuietformerError, in_one_line

OPENVINO_FILE = "openvino/openvino_model.xml"
"""Where optimum-intel looks for it; weights lie beside it in openvino_model.bin."""

TELEMETRY = "openvino_telemetry"


def has_openvino() -> bool:
    return sys.modules.get("openvino") is not None or (
        "openvino" not in sys.modules and find_spec("openvino") is not None
    )


def import_openvino() -> Any:
    """The package, imported so that it sends nothing anywhere."""
    with without_telemetry():
        try:
            import openvino
        except ImportError as error:
            raise QuietformerError(
                f"the runtime openvino is not installed ({in_one_line(error)}); pip install quietformer[openvino]"
            ) from None
    return openvino


@functools.cache
def only_core() -> Any:
    """The one core of this process, never destroyed.

    Each core's CPU plugin puts a signal stack of its own in place and, when it is destroyed, the one before it. With several
    cores that may be one that is freed already, and the next Ctrl-C ends the process with a segmentation fault.
    """
    core = import_openvino().Core()
    core.get_property("CPU", "FULL_DEVICE_NAME")  # loads the plugin, before any that another tool may load
    return core


@contextlib.contextmanager
def without_telemetry() -> Iterator[None]:
    """OpenVINO and NNCF report to their makers as soon as they are imported; without that package they have a stub."""
    before = sys.modules.get(TELEMETRY)
    sys.modules[TELEMETRY] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[TELEMETRY]
        if before is not None:
            sys.modules[TELEMETRY] = before


def write_openvino(onnx_path: Path, path: Path) -> None:
    """Write the IR of an ONNX file; what is fp32 in it stays fp32, and past keys and values become its state."""
    openvino = import_openvino()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        model = openvino.convert_model(onnx_path)
        keep_past_as_state_(model)
        openvino.save_model(model, path, compress_to_fp16=False)
    except Exception as error:  # its own kinds share no base
        raise QuietformerError(f"OpenVINO does not take the graph: {in_one_line(error)}") from error


class OpenVinoModel(RuntimeModel):
    """An IR or ONNX file. Without `precision` OpenVINO chooses: bf16 between integer products where the processor has it."""

    def __init__(self, path: Path, *, threads: int | None = None, precision: str | None = None) -> None:
        asked: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY"}
        if threads is not None:
            asked["INFERENCE_NUM_THREADS"] = threads
        if precision is not None:
            asked["INFERENCE_PRECISION_HINT"] = precision
        try:
            compiled = only_core().compile_model(path, "CPU", asked)
        except Exception as error:
            raise QuietformerError(f"OpenVINO does not take {path}: {in_one_line(error)}") from error
        self.compiled: Any = compiled
        self._of_thread = threading.local()
        self.inputs = [value.any_name for value in compiled.inputs]
        self.shapes = {
            value.any_name: [size.get_length() if size.is_static else None for size in value.partial_shape]
            for value in compiled.inputs
        }
        self.types = {value.any_name: value.get_element_type().to_dtype().type for value in compiled.inputs}
        self.output = compiled.outputs[0].any_name
        self.precision = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()

    @property
    def has_cache(self) -> bool:
        return ROWS in self.inputs

    def run(self, feeds: Feeds) -> Array:
        request = self._request()
        if self.has_cache:
            request.reset_state()
        # A copy: the next pass writes into the same memory.
        return np.array(request.infer(feeds)[0])

    def _request(self) -> Any:
        """The one of this thread: a request has the memory of its output and its state, so threads cannot share it."""
        if not hasattr(self._of_thread, "request"):
            self._of_thread.request = self.compiled.create_infer_request()
        return self._of_thread.request

    def feeds(self, batch: Batch) -> Feeds:
        rows = len(next(iter(batch.values())))
        return super().feeds({**batch, ROWS: torch.arange(rows, dtype=torch.int32)})

    def steps(self) -> Steps:
        return _OpenVinoSteps(self.compiled.create_infer_request())


class _OpenVinoSteps(Steps):
    """The runtime keeps keys and values in the state of a request."""

    def __init__(self, request: Any) -> None:
        self.request = request
        request.reset_state()

    def read(self, feeds: Feeds) -> Array:
        rows = np.arange(len(feeds["input_ids"]), dtype=np.int32)
        return np.array(self.request.infer({**feeds, ROWS: rows})[0])
