"""The folder a model came from, and what that folder says about its embeddings."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

from huggingface_hub import hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from torch import nn

from quietformer.errors import CheckpointError
from quietformer.files import read_json
from quietformer.models.sentence_folder import LENGTHS, MODULES, PROMPTS, SentenceSettings, read_sentence_settings


def origin_of(model: nn.Module) -> Path | None:
    """The local folder; for a hub id the one in the cache. Nothing is fetched."""
    name = str(getattr(getattr(model, "config", None), "name_or_path", "") or "")
    return local_folder(name) if name else None


def local_folder(name: str) -> Path | None:
    """The folder of this name, or the cached one of a hub id."""
    folder = Path(name)
    if folder.is_dir():
        return folder
    try:
        config = try_to_load_from_cache(name, "config.json")
    except HFValidationError:  # no name that the hub could have
        return None
    return Path(config).parent if isinstance(config, str) else None


def fetch_sentence_files(hub_id: str) -> None:
    """Pooling, length and prompts of a hub id, beside its model: transformers leaves them behind."""
    with contextlib.suppress(Exception):  # most repositories have none, and errors of the hub share no base
        listed = json.loads(Path(hf_hub_download(hub_id, MODULES)).read_text(encoding="utf-8"))
        pools = [f"{module['path']}/config.json" for module in listed if module.get("path")]
        for name in (*pools, PROMPTS, LENGTHS[0], "README.md"):
            with contextlib.suppress(Exception):
                hf_hub_download(hub_id, name)


def sentence_folder_of(folder: Path) -> tuple[Path, SentenceSettings] | None:
    """The sentence-transformers folder that this folder is, or whose model lies in this folder, and its settings."""
    for place in (folder, folder.absolute().parent):
        settings = read_sentence_settings(place)
        if settings is not None and (place == folder or settings.transformer == folder.name):
            return place, settings
    return None


def transformer_folder(folder: Path) -> Path:
    """Where config.json and weights are: early sentence-transformers folders have them in a subfolder."""
    if (folder / "config.json").is_file():
        return folder
    settings = read_sentence_settings(folder)
    return folder / settings.transformer if settings is not None else folder


def copy_sentence_files(model: nn.Module, draft: Path) -> None:
    """What makes a folder a sentence-transformers one: its modules, pooling, length and prompts; the model stands at the top."""
    origin = origin_of(model)
    found = None if origin is None else sentence_folder_of(origin)
    if found is None:
        return
    folder, settings = found
    modules = read_json(folder / MODULES, f"{folder / MODULES} is not there", CheckpointError)
    for module in modules:
        place = module.get("path", "")
        if place == settings.transformer:
            module["path"] = ""
        elif (folder / place).is_dir() and not (folder / place).samefile(folder):
            shutil.copytree(folder / place, draft / place, dirs_exist_ok=True, ignore=_not_copied)
    (draft / MODULES).write_text(json.dumps(modules, indent=2) + "\n", encoding="utf-8")
    for path in (folder / PROMPTS, *(folder / settings.transformer / name for name in LENGTHS)):
        if path.is_file():
            shutil.copy2(path, draft / path.name)


def _not_copied(folder: str, names: list[str]) -> list[str]:
    """Links to folders may lead anywhere, and pipes never end; files of the hub's cache are links to files."""
    paths = {name: Path(folder) / name for name in names}
    return [name for name, path in paths.items() if not path.is_file() and (path.is_symlink() or not path.is_dir())]
