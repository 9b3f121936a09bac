"""A graph running in onnxruntime, called as a model is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from quietformer.deployment.runtime_model import Feeds, RuntimeModel
from quietformer.errors import QuietformerError, in_one_line


class OnnxModel(RuntimeModel):
    """Takes a batch of tensors and gives the output by its name."""

    def __init__(self, path: Path, *, threads: int | None = None) -> None:
        import onnxruntime

        options: Any = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # it warns of every initializer it folds
        if threads is not None:
            options.intra_op_num_threads = threads
        try:
            self.session: Any = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's own kinds share no base
            raise QuietformerError(f"onnxruntime does not take {path}: {in_one_line(error)}") from error
        self.inputs = [value.name for value in self.session.get_inputs()]
        self.shapes = {
            value.name: [size if isinstance(size, int) else None for size in value.shape]
            for value in self.session.get_inputs()
        }
        self.output = self.session.get_outputs()[0].name

    def run(self, feeds: Feeds) -> np.ndarray[Any, Any]:
        (output,) = self.session.run([self.output], feeds)
        found: np.ndarray[Any, Any] = output
        return found
