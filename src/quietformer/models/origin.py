"""The folder a model came from, and what that folder says about its embeddings."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

from huggingface_hub import _CACHED_NO_EXIST, constants, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError, HFValidationError, LocalEntryNotFoundError
from torch import nn

from quietformer.errors import CheckpointError, QuietformerWarning, in_one_line
from quietformer.files import read_json
from quietformer.models.sentence_folder import (
    LENGTHS,
    MODULES,
    PROMPTS,
    SentenceSettings,
    modules_of,
    read_sentence_settings,
    unknown_kind,
)

CARD = "README.md"


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


def fetch_sentence_files(hub_id: str, *, embeds: bool) -> None:
    """Card, pooling, length and prompts of a hub id, beside its model: transformers leaves them behind.

    For a model that makes embeddings of texts it is an error not to know how they are pooled.
    """
    try:
        _fetched(hub_id, CARD)
    except (OSError, LocalEntryNotFoundError) as error:
        if not constants.HF_HUB_OFFLINE:
            why = f"{hub_id}: its {CARD} cannot be fetched, so a card made of it lacks the license: {in_one_line(error, 120)}"
            warnings.warn(why, QuietformerWarning, stacklevel=2)
    try:
        listed = _fetched(hub_id, MODULES)
        if listed is not None:
            places = [place for _, place in modules_of(listed.parent) if place]
            for name in (*(f"{place}/config.json" for place in places), PROMPTS, LENGTHS[0]):
                _fetched(hub_id, name)
    except (OSError, LocalEntryNotFoundError) as error:
        if embeds:
            raise CheckpointError(
                f"{hub_id}: its {MODULES} says how embeddings are pooled and cannot be fetched ({in_one_line(error, 120)}); "
                f"try again online, or open a folder made by `hf download {hub_id} --local-dir FOLDER`"
            ) from error


def _fetched(hub_id: str, name: str) -> Path | None:
    """A file in the cache; None if the repository has none of that name. An error of the network is an error."""
    if try_to_load_from_cache(hub_id, name) is _CACHED_NO_EXIST:
        return None  # known even without a network
    try:
        return Path(hf_hub_download(hub_id, name))
    except LocalEntryNotFoundError:
        raise
    except EntryNotFoundError:
        return None


def sentence_folder_of(folder: Path) -> tuple[Path, SentenceSettings] | None:
    """The sentence-transformers folder that this folder is, or whose model lies in this folder, and its settings."""
    for place in (folder, folder.absolute().parent):
        settings = read_sentence_settings(place)
        if settings is not None and (place == folder or settings.transformer == folder.name):
            return place, settings
    return None


def unknown_kind_of(folder: Path) -> str:
    """What a modules.json in this folder, or above a folder without one, describes that is not understood; or empty."""
    place = next((one for one in (folder, folder.absolute().parent) if (one / MODULES).is_file()), folder)
    return unknown_kind(place)


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
