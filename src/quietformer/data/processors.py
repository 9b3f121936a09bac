"""What comes with a model to prepare its images or its audio: its own sizes, means, windows and sampling rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quietformer.errors import QuietformerError, in_one_line
from quietformer.models.check_folder import check_files

FILES = ("preprocessor_config.json", "processor_config.json")


def image_processor_of(source: str) -> Any:
    """The image processor of a model folder or hub id; None where it has none."""
    import transformers

    if not (place := _with_processor(source)):
        return None
    try:  # the backend that needs no torchvision
        loader: Any = transformers.AutoImageProcessor
        return loader.from_pretrained(place, backend="pil", **_safely(place))
    except QuietformerError:
        raise
    except Exception as error:  # whatever a damaged file, or one that needs more, makes transformers stumble over
        if not Path(place).is_dir() and isinstance(error, OSError):
            return None
        raise QuietformerError(
            f"the image processor of {source} does not load: {in_one_line(error, 200)}; "
            "put it right, or remove preprocessor_config.json to have images scaled to the model's size and to [-1, 1]"
        ) from error


def feature_extractor_of(source: str) -> Any:
    """The feature extractor of a model folder or hub id, without which audio means nothing to it."""
    import transformers

    place = _with_processor(source)
    try:
        if not place:
            raise OSError("there is no preprocessor_config.json")
        loader: Any = transformers.AutoFeatureExtractor
        return loader.from_pretrained(place, **_safely(place))
    except Exception as error:  # as above
        raise QuietformerError(
            f"{source} has no feature extractor that loads: {in_one_line(error, 200)}; save the model's own into the folder"
        ) from error


def _safely(place: str) -> dict[str, bool]:
    """Nothing remote for a folder, no code that comes with the model, and no pipe that is read for ever."""
    if here := Path(place).is_dir():
        check_files(Path(place))
    return {"local_files_only": here, "trust_remote_code": False}


def _with_processor(source: str) -> str:
    """Where transformers is to look; empty for a folder that has no processor, and for a model without a name."""
    from quietformer.models.open_any import gguf_file, resolve

    if not source or gguf_file(source) is not None:
        return ""
    folder = Path(resolve(source))
    if folder.is_dir():
        return str(folder) if any((folder / name).is_file() for name in FILES) else ""
    return source
