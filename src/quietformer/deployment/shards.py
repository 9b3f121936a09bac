"""Safetensors written shard by shard: what is in one shard is forgotten before the next is made."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from quietformer.errors import QuietformerError, in_one_line
from quietformer.files import free_in_words, write_text
from quietformer.models.folder_files import PLAIN


class ShardWriter:
    """Writes `model-00001-of-00003.safetensors` and so on, and at last the index that names them."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count
        self.shards: list[str] = []
        self.weight_map: dict[str, str] = {}
        self.bytes = 0

    def add(self, tensors: dict[str, Tensor]) -> None:
        """Write the next shard."""
        name = f"{PLAIN}-{len(self.shards) + 1:05}-of-{self.count:05}.safetensors"
        try:
            save_file(
                {key: tensor.contiguous() for key, tensor in tensors.items()}, self.folder / name, {"format": "pt"}
            )
        except (SafetensorError, OSError) as error:
            raise QuietformerError(
                f"cannot write {self.folder / name}: {in_one_line(error)}; {free_in_words(self.folder)}"
            ) from error
        self.shards.append(name)
        self.weight_map |= dict.fromkeys(tensors, name)
        self.bytes += sum(tensor.nbytes for tensor in tensors.values())

    def finish(self) -> None:
        """Write the index."""
        index = {"metadata": {"total_size": self.bytes}, "weight_map": dict(sorted(self.weight_map.items()))}
        write_text(self.folder / f"{PLAIN}.safetensors.index.json", json.dumps(index, indent=2) + "\n")
