"""Hidden states of many batches in files: between two blocks they are all that is left of a pass."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor


class HiddenStates:
    """One tensor a batch, each in a file of its own; read and written whole, so that no file stays mapped into memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True)
        self.known: dict[int, tuple[torch.Size, torch.dtype]] = {}

    def write(self, place: int, hidden: Tensor) -> None:
        hidden = hidden.detach().cpu().contiguous()
        self.known[place] = (hidden.shape, hidden.dtype)
        (self.folder / str(place)).write_bytes(hidden.view(-1).view(torch.uint8).numpy().data)

    def read(self, place: int) -> Tensor:
        shape, dtype = self.known[place]
        # Into memory of torch's own: it is aligned as that of a pass is, on which the bits of matrix products depend.
        hidden = torch.empty(shape, dtype=dtype)
        with (self.folder / str(place)).open("rb") as file:
            file.readinto(hidden.view(-1).view(torch.uint8).numpy().data)
        return hidden
