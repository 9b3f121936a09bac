"""Whether a model folder can be what it says, found out before anything is built from it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import PreTrainedModel

from quietformer.errors import CheckpointError, QuietformerError, in_one_line
from quietformer.files import check_regular, read_json
from quietformer.models.folder_files import PROCESSOR_FILES

READ = ("*.json", "*.safetensors", "*.bin", *PROCESSOR_FILES)
"""What is read of a model folder, by us or by transformers."""

INDEX = ".safetensors.index.json"

COUNTS = re.compile(r"(layers|n_layer|blocks|depths?|experts|stages)$")
"""Fields of a config that say how often something is built."""

MOST = 4096
"""No model has more layers or experts than that; building a million would take hours."""

LARGEST = 10**9
"""Of other whole numbers in a config: sizes whose products still fit into 64 bits."""


SCALED = ("F8_", "F6_", "F4")
"""Types of weights that mean little without scales beside them."""


CONFIG_REMEDY = "restore or correct its config.json"
"""What is left to put right where the files are whole, and transformers does not build the model."""


def check_folder(folder: Path) -> None:
    """Its files are files, its config is an object of sane sizes, and its index names files of the folder."""
    check_files(folder)
    path = folder / "config.json"
    config = read_json(path, f"{folder} has no config.json, so it is not a model folder", CheckpointError)
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} must hold a JSON object, got {type(config).__name__}")
    check_counts(config, str(path))
    _check_generation(folder / "generation_config.json")
    index, whole = folder / f"model{INDEX}", folder / "model.safetensors"
    for file in [whole] if whole.is_file() else shards_of(index) if index.is_file() else []:
        check_safetensors(file)


def _check_generation(path: Path) -> None:
    """transformers ignores one that it cannot read, and the model would then generate other text without a warning."""
    if path.is_file() and not isinstance(read_json(path, f"{path} is not there", CheckpointError), dict):
        raise CheckpointError(f"{path} must hold a JSON object; restore the file, or delete it to use the defaults")


def check_safetensors(path: Path) -> None:
    """The header is whole, and the file as long as it says."""
    try:
        with safe_open(path, framework="pt") as tensors:
            if not list(tensors.keys()):
                raise CheckpointError(f"{path} holds no tensors; fetch or save it again")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged or cut short: {in_one_line(error)}; fetch or save it again") from None


def check_files(folder: Path) -> None:
    """No pipe, device or loop of links under a name that would be read."""
    for path in sorted({path for pattern in READ for path in folder.glob(pattern)}):
        check_regular(path, CheckpointError)
        if not os.access(path, os.R_OK):  # the reader of safetensors would say that it is not there
            raise CheckpointError(f"{path} cannot be read: permission denied")


def check_counts(config: Mapping[str, object], where: str) -> None:
    """How much a config asks to build, also in its parts."""
    for name, value in config.items():
        if isinstance(value, dict):
            check_counts(value, where)
            continue
        least, most = (-1, MOST) if COUNTS.search(str(name)) else (-LARGEST, LARGEST)
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int) and not least <= number <= most:
                raise CheckpointError(f"{where}: {name} must lie between {least} and {most}, got {str(number)[:20]}")


def shards_of(index: Path) -> list[Path]:
    """The files a weight index names, all of them in its folder."""
    content = read_json(index, f"{index} is not there", CheckpointError)
    named = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(named, dict) or not named or not all(isinstance(shard, str) for shard in named.values()):
        raise CheckpointError(f"{index} is not a weight index: it needs a weight_map of tensors and file names")
    shards = sorted(set(named.values()))
    for shard in shards:
        if not shard or os.path.basename(shard) != shard:
            raise CheckpointError(f"{index} names {shard!r}, which is not a file of the folder")
        if not (index.parent / shard).is_file():
            raise CheckpointError(f"{index.parent / shard}, named in {index.name}, is not there")
    return [index.parent / shard for shard in shards]


def check_numbers(folder: Path, model: PreTrainedModel, unexpected: Iterable[str]) -> None:
    """Weights are real numbers in the files; transformers would make 1e9 of an integer, or drop half of a complex number.

    Whole numbers are taken for the buffers that hold such, and in what is not loaded at all: early GPT models stored their
    causal mask, as the `attn.bias` that no model of today has.
    """
    if getattr(model.config, "quantization_config", None) is not None:
        return
    whole = {_ending(name) for name, tensor in model.named_buffers() if not tensor.is_floating_point()}
    left_out = set(unexpected)
    left_out_endings = {ending for name in left_out for ending in _endings(name)}
    ignored = [re.compile(pattern) for pattern in model._keys_to_ignore_on_load_unexpected or ()]
    scaled = any("scale" in one for one in left_out)
    for name, dtype, path in _stored(folder):
        if scaled and dtype.startswith(SCALED):
            raise CheckpointError(
                f"{path}: {name} holds {dtype} numbers, and the config has no place for their scales; add quantization_config to "
                "config.json, or save the weights in 16 bits"
            )
        if dtype.startswith(("F", "BF")) or _ending(name) in whole:
            continue
        unread = name in left_out_endings or any(ending in left_out for ending in _endings(name))
        if not unread and not any(pattern.search(name) for pattern in ignored):
            raise CheckpointError(f"{path}: {name} holds {dtype} numbers where real ones belong; save the model again")


def _endings(name: str) -> list[str]:
    """The name without what stands before, part by part; the whole name is the first."""
    parts = name.split(".")
    return [".".join(parts[start:]) for start in range(len(parts))]


def _ending(name: str) -> str:
    """The parameter and the module that it is of; what stands before may differ between disk and memory."""
    return ".".join(name.rsplit(".", 2)[-2:])


def _stored(folder: Path) -> Iterator[tuple[str, str, Path]]:
    """Names and types of the tensors transformers reads."""
    whole = folder / "model.safetensors"
    index = folder / f"model{INDEX}"
    files = (
        [whole] if whole.is_file() else shards_of(index) if index.is_file() else sorted(folder.glob("*.safetensors"))
    )
    for path in files:
        try:
            with safe_open(path, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118
                    yield name, str(tensors.get_slice(name).get_dtype()), path
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} is damaged: {in_one_line(error)}") from None


def check_finite(model: nn.Module) -> None:
    """NaN in the weights makes every metric NaN; better to name the tensor."""
    for name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise QuietformerError(f"{name} holds NaN or infinity; fetch or save the model again")


def check_blocks(source: str, model: PreTrainedModel, unexpected: Iterable[str]) -> None:
    """The files hold no layer past those the config asks for: a model without its last layers is another model."""
    own = model.state_dict()
    prefix = f"{model.base_model_prefix}."
    known = {name.removeprefix(prefix) for name in own}
    patterns = {_numberless(name) for name in known}
    begun = {before for name in known for before in _numbered(name)}
    for name in sorted(unexpected):
        short = name.removeprefix(prefix)
        if _numberless(short) in patterns and any(before not in begun for before in _numbered(short)):
            raise QuietformerError(
                f"{source} holds {name}, a layer its config has no place for; correct the number of layers in config.json"
            )


def _numberless(name: str) -> str:
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


def _numbered(name: str) -> list[str]:
    """What stands before and at each number: `encoder.layer.3`."""
    return [name[: match.end()] for match in re.finditer(r"\.\d+(?=\.|$)", name)]
