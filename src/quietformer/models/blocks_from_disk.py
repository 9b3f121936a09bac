"""A model whose weights stay on disk: it has every module, and numbers only in the parts that are loaded at the moment.

The other parameters are fake tensors of the right shape. One forward pass on them tells which tensor flows where, as a pass of
the real model does, and costs no memory.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from quietformer.errors import CheckpointError, QuietformerError, in_one_line
from quietformer.models.check_folder import CONFIG_REMEDY, check_blocks, check_folder
from quietformer.models.open_any import is_ours, named_class, resolve
from quietformer.models.silence_transformers import silenced_transformers
from quietformer.models.stored_tensors import FLOATING, StoredTensor, stored_tensors


class ModelOnDisk:
    """A folder of safetensors; `hollow` builds its model without numbers, and `fill_` reads some of them."""

    def __init__(self, source: str, *, trust_remote_code: bool = False) -> None:
        self.folder = Path(resolve(source))
        self.trust_remote_code = trust_remote_code
        if not self.folder.is_dir():
            raise QuietformerError(f"{source} is not a folder; only a model folder can be read layer by layer")
        check_folder(self.folder)
        if is_ours(self.folder):
            raise QuietformerError(f"{source} has been changed by Quietformer; give the folder of the original model")
        self.stored = stored_tensors(self.folder)
        self.config = self._config()
        self.model_class: Any = named_class(self.config)
        if self.model_class is None:
            named = ", ".join(map(str, self.config.architectures or ["no class"]))
            raise QuietformerError(
                f"{self.folder / 'config.json'} names {named}, which is no model class of transformers"
            )

    def _config(self) -> PreTrainedConfig:
        try:
            with silenced_transformers():
                config: PreTrainedConfig = AutoConfig.from_pretrained(
                    self.folder, trust_remote_code=self.trust_remote_code, local_files_only=True
                )
        except Exception as error:  # whatever a damaged config makes transformers stumble over
            raise QuietformerError(f"cannot load {self.folder}: {in_one_line(error, 200)}; {CONFIG_REMEDY}") from error
        if getattr(config, "quantization_config", None) is not None:
            raise QuietformerError(f"{self.folder} is quantized already by another method; give the original model")
        if config.dtype is None:  # as `from_pretrained` does with dtype="auto"
            config.dtype = next((FLOATING[one.dtype] for one in self.stored.values() if one.dtype in FLOATING), None)
        for name in config.sub_configs:
            if (part := getattr(config, name)) is not None:
                part.dtype = config.dtype
        return config

    def hollow(self) -> PreTrainedModel:
        """The model in eval mode with fake parameters; those that are tied are one."""
        with silenced_transformers(), no_init_weights(), init_empty_weights(include_buffers=False):
            model: PreTrainedModel = self.model_class._from_config(copy.deepcopy(self.config), dtype=self.config.dtype)
        model.config.name_or_path = str(self.folder)
        model.tie_weights()
        model.train(False)
        hollow_(model)
        self._check_complete(model)
        return model

    def _check_complete(self, model: PreTrainedModel) -> None:
        """Every parameter is in the files as a real number, in its shape, and no layer is left over."""
        used: set[str] = set()
        missing: list[str] = []
        for names in names_of(model):
            needed = tuple(model.get_parameter(names[0]).shape)
            found = self.source_of(model, names)
            if found is None:
                missing.append(names[0])
                continue
            used.add(found.name)
            if found.shape != needed:
                raise CheckpointError(
                    f"{found.file}: {found.name} has shape {found.shape}, the model needs {needed}; the weights do not belong to "
                    "this config.json"
                )
            if found.dtype not in FLOATING:
                raise CheckpointError(
                    f"{found.file}: {found.name} holds {found.dtype} numbers where real ones belong; save the model again"
                )
        if missing:
            raise CheckpointError(
                f"{self.folder} lacks {len(missing)} tensors of {type(model).__name__} or has them under other names, first "
                f"{missing[0]!r}; it cannot be read layer by layer"
            )
        check_blocks(str(self.folder), model, set(self.stored) - used)

    def source_of(self, model: PreTrainedModel, names: list[str]) -> StoredTensor | None:
        """The stored tensor of a parameter that has these names; folders of base models lack what stands before."""
        prefix = f"{model.base_model_prefix}."
        for name in names:
            for stored in (name, name.removeprefix(prefix), f"{prefix}{name}"):
                if stored in self.stored:
                    return self.stored[stored]
        return None

    def fill_(self, model: PreTrainedModel, wanted: set[str], device: torch.device | str = "cpu") -> None:
        """Read the parameters and saved buffers of these names."""
        for names in names_of(model):
            if wanted.isdisjoint(names):
                continue
            source, fake = self.source_of(model, names), model.get_parameter(names[0])
            assert source is not None
            filled = nn.Parameter(source.read().to(device=device, dtype=fake.dtype), requires_grad=False)
            for name in names:
                put_(model, name, filled)
        for name, buffer in model.named_buffers():
            if name in wanted and (source := self.source_of(model, [name])) is not None:
                buffer.copy_(source.read())

    @property
    def bytes(self) -> int:
        """Of all weights, as they are stored."""
        return sum(file.stat().st_size for file in {one.file for one in self.stored.values()})


def hollow_(module: nn.Module) -> None:
    """Put fake tensors in the place of all parameters; tied ones stay one."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)  # inputs, masks and buffers are real, and small
    made: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is None or isinstance(parameter, FakeTensor):
                continue
            if id(parameter) not in made:
                with mode:
                    fake = torch.empty(parameter.shape, dtype=parameter.dtype, device="cpu")
                made[id(parameter)] = nn.Parameter(fake, requires_grad=False)
            part._parameters[name] = made[id(parameter)]


def release_memory() -> None:
    """Give back what is free: allocators keep the room of earlier blocks, in pieces that the next block does not fit into."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError, TypeError):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)


def names_of(model: nn.Module) -> Iterator[list[str]]:
    """The names of every parameter; a tied one has several."""
    found: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        found.setdefault(id(parameter), []).append(name)
    yield from found.values()


def put_(model: nn.Module, name: str, parameter: Tensor) -> None:
    """Put a parameter under a name, past the checks that take a fake one for a plain tensor."""
    owner, _, last = name.rpartition(".")
    model.get_submodule(owner)._parameters[last] = parameter  # type: ignore[assignment]
