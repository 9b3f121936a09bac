"""A graph running in onnxruntime, called as a model is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from quietformer.deployment.cache_names import ENCODER_PART, PAST_PREFIX, PRESENT_PREFIX, USE_CACHE, is_past
from quietformer.deployment.runtime_model import Array, Feeds, RuntimeModel, Steps
from quietformer.errors import QuietformerError, in_one_line

TYPES: dict[str, type[np.generic]] = {
    "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(float)": np.float32, "tensor(float16)": np.float16,
    "tensor(double)": np.float64, "tensor(bool)": np.bool_,
}  # fmt: skip
"""What the runtime calls the types of inputs."""


class OnnxModel(RuntimeModel):
    """Takes a batch of tensors and gives the output by its name; without `optimized` node by node as the file is written."""

    def __init__(self, path: Path, *, threads: int | None = None, optimized: bool = True) -> None:
        import onnxruntime

        options: Any = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # it warns of every initializer it folds
        if threads is not None:
            options.intra_op_num_threads = threads
        if not optimized:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            self.session: Any = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's own kinds share no base
            raise QuietformerError(f"onnxruntime does not take {path}: {in_one_line(error)}") from error
        self.inputs = [value.name for value in self.session.get_inputs()]
        self.shapes = {
            value.name: [size if isinstance(size, int) else None for size in value.shape]
            for value in self.session.get_inputs()
        }
        self.types = {value.name: TYPES[value.type] for value in self.session.get_inputs() if value.type in TYPES}
        self.optional_inputs = tuple(value.name for value in self.session.get_overridable_initializers())
        self.output = self.session.get_outputs()[0].name

    def run(self, feeds: Feeds) -> Array:
        (output,) = self.session.run([self.output], feeds)
        found: Array = output
        return found

    def steps(self) -> Steps:
        return _OnnxSteps(self)


class _OnnxSteps(Steps):
    """Keys and values stay in the runtime's memory from one step to the next."""

    def __init__(self, model: OnnxModel) -> None:
        self.model = model
        self.names = [name for name in model.inputs if is_past(name)]
        self.presents = [name.replace(PAST_PREFIX, PRESENT_PREFIX, 1) for name in self.names]
        self.past: dict[str, Any] = {}
        self.begun = False

    def read(self, feeds: Feeds) -> Array:
        from onnxruntime import OrtValue

        if not self.past:
            size = len(next(iter(feeds.values())))
            empty = {name: self.model.empty_past(name, size) for name in self.names}
            self.past = {name: OrtValue.ortvalue_from_numpy(array) for name, array in empty.items()}
        if USE_CACHE in self.model.inputs:
            feeds = feeds | {USE_CACHE: np.array([self.begun])}
        given = {name: OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()} | self.past
        output, *presents = self.model.session.run_with_ort_values([self.model.output, *self.presents], given)
        found_now = dict(zip(self.names, presents, strict=True))
        # Of the encoder's output a further step gives nothing: its keys and values stay.
        self.past |= {name: one for name, one in found_now.items() if not (self.begun and ENCODER_PART in name)}
        self.begun = True
        found: Array = output.numpy()
        return found
