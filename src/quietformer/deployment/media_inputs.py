"""Images and recordings as inputs of an exported model, made by the processor in its folder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quietformer.architectures.forward import Batch
from quietformer.data.audio_batches import rate_of, read_wav, resampled
from quietformer.data.image_batches import open_image, processed
from quietformer.data.processors import feature_extractor_of, image_processor_of
from quietformer.deployment.exported_folder import ExportedFolder
from quietformer.errors import QuietformerError
from quietformer.results import numbers

PIXELS, SAMPLES, FEATURES = "pixel_values", "input_values", "input_features"
"""What a model of images takes, one of sound as it is, and one of spectrograms."""

Shapes = Mapping[str, Sequence[int | None]]
"""Of every input of the graph; None where any size will do."""


def is_single(given: object) -> bool:
    """Whether it is one image, recording or text, and not a list of them."""
    return not isinstance(given, Sequence) or isinstance(given, str)


def media_batches(
    exported: ExportedFolder, shapes: Shapes, given: Sequence[Any], batch_size: int
) -> Iterator[tuple[list[int], Batch]]:
    """The places of what is given, and its batch."""
    if batch_size < 1:
        raise QuietformerError(f"batch_size must be at least 1, got {batch_size}")
    if PIXELS in shapes:
        return _images(exported, given, batch_size)
    if name := next((name for name in (FEATURES, SAMPLES) if name in shapes), None):
        return _recordings(exported, name, shapes[name], given)
    raise QuietformerError(f"give arrays by the names of the model's inputs ({', '.join(shapes)}): model(NAME=array)")


# ---- images
def _images(exported: ExportedFolder, given: Sequence[Any], batch_size: int) -> Iterator[tuple[list[int], Batch]]:
    processor = image_processor_of(str(exported.folder))
    if processor is None:
        raise QuietformerError(
            f"{exported.folder} has no preprocessor_config.json to prepare images with; give arrays: model({PIXELS}=array)"
        )
    for begin in range(0, len(given), batch_size):
        places = list(range(begin, min(begin + batch_size, len(given))))
        images = (_image(given[place], exported.config.get("num_channels", 3)) for place in places)
        yield places, {PIXELS: processed(images, processor)}


def _image(given: Any, channels: int) -> Any:
    """An image of PIL, from a path, from PIL, or from pixels (H, W, 3) or (H, W) of 0 to 255."""
    if isinstance(given, str | os.PathLike):
        return open_image(Path(given), channels=channels)
    from PIL import Image  # the processor needs it too

    if isinstance(given, Image.Image):
        return given.convert("L" if channels == 1 else "RGB")
    if (
        isinstance(given, np.ndarray)
        and given.dtype == np.uint8
        and (given.ndim == 2 or given.shape[2:] in ((3,), (4,)))
    ):
        return Image.fromarray(given).convert("L" if channels == 1 else "RGB")
    kind = f"{given.dtype} of shape {list(given.shape)}" if hasattr(given, "shape") else type(given).__name__
    raise QuietformerError(
        f"not an image: {kind}. Give a path, an image of PIL, or pixels (height, width, 3) of uint8; tensors that are "
        f"prepared already go by name: model({PIXELS}=tensor)"
    )


# ---- recordings
def _recordings(
    exported: ExportedFolder, name: str, shape: Sequence[int | None], given: Sequence[Any]
) -> Iterator[tuple[list[int], Batch]]:
    """One by one: padding to a common length would change what some models give."""
    extractor = feature_extractor_of(str(exported.folder))
    rate = rate_of(extractor)
    longest = getattr(extractor, "n_samples", None) or (shape[-1] if name == SAMPLES else None)
    padding: dict[str, Any] = {"padding": "max_length", "max_length": longest} if longest else {}
    for place, recording in enumerate(given):
        samples = recording_samples(recording, rate, rate)
        if longest and len(samples) > longest:
            raise QuietformerError(
                f"a recording lasts {numbers.duration(len(samples) / rate)}, and the model takes "
                f"{numbers.duration(longest / rate)} at once; cut it"
            )
        made = extractor(samples.numpy(), sampling_rate=rate, return_tensors="pt", **padding)
        yield [place], {name: tensor for name, tensor in made.items() if isinstance(tensor, Tensor)}


def recording_samples(recording: Any, rate: int, wanted: int) -> Tensor:
    """Samples at the rate that the extractor wants, from the path of a .wav file or from samples at `rate`."""
    if isinstance(recording, str | os.PathLike):
        return resampled(*read_wav(Path(recording)), wanted)
    try:
        samples = torch.as_tensor(np.asarray(recording))
    except (TypeError, ValueError, RuntimeError):
        samples = torch.zeros(0, 0)
    if samples.dim() != 1 or not samples.is_floating_point() or not len(samples):
        kind = f"{samples.dtype} of shape {list(samples.shape)}" if samples.numel() else type(recording).__name__
        raise QuietformerError(
            f"a recording is the path of a .wav file, or samples of [-1, 1] in a row of floats, got {kind}"
        )
    if not bool(torch.isfinite(samples).all()):
        raise QuietformerError("a recording has samples that are no finite numbers; remove them")
    return resampled(samples.float(), rate, wanted)
