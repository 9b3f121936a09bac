"""The tensors of a model folder, read one at a time: a model that does not fit into memory is never opened whole."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from quietformer.errors import CheckpointError, in_one_line
from quietformer.models.check_folder import INDEX, shards_of
from quietformer.models.folder_files import PLAIN

FLOATING = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Types of weights, by the names that safetensors gives them."""


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies, and what it is like."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str

    def read(self) -> Tensor:
        """The tensor, backed by the file, as `from_pretrained` has it: the same alignment, so the same bits of matrix products.

        What is changed in it stays in memory. The file is mapped for as long as the tensor lives.
        """
        try:
            with safe_open(self.file, framework="pt") as tensors:
                found: Tensor = tensors.get_tensor(self.name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{self.file} is damaged: {in_one_line(error)}") from None
        # The extremes are NaN if anything is, and take no memory to find.
        if found.is_floating_point() and found.numel() and not bool(torch.stack(torch.aminmax(found)).isfinite().all()):
            raise CheckpointError(f"{self.file}: {self.name} holds NaN or infinity; fetch or save the model again")
        return found


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of a folder by its name; of the files nothing is read but their headers."""
    whole, index = folder / f"{PLAIN}.safetensors", folder / f"{PLAIN}{INDEX}"
    if not whole.is_file() and not index.is_file():
        raise CheckpointError(
            f"{folder} has no {whole.name} and no {index.name}; a model is read layer by layer from safetensors only"
        )
    found: dict[str, StoredTensor] = {}
    for file in [whole] if whole.is_file() else shards_of(index):
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118
                    part = tensors.get_slice(name)
                    found[name] = StoredTensor(file, name, tuple(part.get_shape()), str(part.get_dtype()))
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file} is damaged: {in_one_line(error)}") from None
    return found
