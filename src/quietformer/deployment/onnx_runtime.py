"""A graph running in onnxruntime, called as a model is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quietformer.architectures.forward import Batch
from quietformer.errors import QuietformerError, in_one_line


class OnnxModel:
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
        self.output = self.session.get_outputs()[0].name

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        (output,) = self.session.run(None, self.feeds(batch))
        return {self.output: torch.from_numpy(output)}

    def feeds(self, batch: Batch) -> dict[str, np.ndarray]:
        """Token types are zero for single texts and every token counts, unless the batch says otherwise."""
        shape = tuple(next(iter(batch.values())).shape)
        usual = {"token_type_ids": np.zeros, "attention_mask": np.ones}
        if missing := [name for name in self.inputs if name not in batch and name not in usual]:
            raise QuietformerError(f"the model takes {missing[0]}, which the batch ({', '.join(batch)}) does not have")
        return {
            name: batch[name].numpy() if name in batch else usual[name](shape, dtype=np.int64) for name in self.inputs
        }
