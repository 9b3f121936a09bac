"""Images from a folder, or scikit-learn's digits, as batches of pixel values."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch
from torch import Tensor

from quietformer.errors import QuietformerError, in_one_line
from quietformer.files import check_regular

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm")


def folder_images(folder: Path, *, count: int, size: int, channels: int, processor: Any = None) -> Tensor:
    """Up to `count` images of a folder and its subfolders, in order of name.

    A model's own image processor scales, crops and normalises them; without one they become size x size, in [-1, 1].
    """
    return _decoded(image_paths(folder)[:count], size, channels, processor)


def labelled_folder_images(
    folder: Path,
    *,
    count: int,
    size: int,
    channels: int,
    label2id: Mapping[str, int] | None = None,
    processor: Any = None,
) -> tuple[Tensor, Tensor | None]:
    """Up to `count` images, of all classes alike, and their labels; no labels if the subfolders are not the classes."""
    paths = image_paths(folder)
    by_class: dict[str, list[Path]] = {}
    for path in paths:
        by_class.setdefault(path.relative_to(folder).parts[0], []).append(path)
    labels = None if any(path.parent == folder for path in paths) else _class_labels(sorted(by_class), label2id)
    if labels is None:
        return _decoded(paths[:count], size, channels, processor), None
    # In turn, since the first images by name would be those of the first class alone.
    turns = itertools.zip_longest(*(by_class[name] for name in labels))
    chosen = [path for turn in turns for path in turn if path is not None][:count]
    found = torch.tensor([labels[path.relative_to(folder).parts[0]] for path in chosen])
    return _decoded(chosen, size, channels, processor), found


def _class_labels(names: list[str], label2id: Mapping[str, int] | None) -> dict[str, int] | None:
    """By the model's names for its classes; by order if it names none of them so, but has as many."""
    known = {str(name).casefold(): int(label) for name, label in (label2id or {}).items()}
    strangers = [name for name in names if name.casefold() not in known]
    if not strangers:
        return {name: known[name.casefold()] for name in names}
    if len(strangers) < len(names):
        raise QuietformerError(f"the folder {strangers[0]!r} is no class of the model, though others beside it are")
    # A single folder is more likely a place for images than a class; an unequal number cannot be in the model's order.
    if len(names) < 2 or (known and len(names) != len(known)):
        return None
    return {name: label for label, name in enumerate(class_order(names))}


def class_order(names: Iterable[str]) -> list[str]:
    """By name, and numbers by value: "10" comes after "9", not after "1"."""
    ordered = sorted(names)
    return sorted(ordered, key=int) if all(name.isdecimal() for name in ordered) else ordered


def image_paths(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise QuietformerError(f"{folder} is not a folder of images; give a folder with .png or .jpg files")
    paths = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in SUFFIXES]
    if not paths:
        raise QuietformerError(f"{folder} holds no images ({', '.join(SUFFIXES)})")
    return paths


def _decoded(paths: list[Path], size: int, channels: int, processor: Any) -> Tensor:
    images = (open_image(path, channels=channels) for path in paths)
    if processor is not None:
        return processed(images, processor)
    return torch.stack([as_models_take(_as_tensor(image.resize((size, size)))) for image in images])


def _as_tensor(image: Image.Image) -> Tensor:
    """Pixels of [0, 1], channels first."""
    data = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return data.view(image.height, image.width, -1).permute(2, 0, 1).float() / 255


def processed(images: Iterable[Image.Image], processor: Any) -> Tensor:
    """What a model's own image processor makes of each image."""
    made = [_prepared(image, processor) for image in images]
    if len(shapes := {tuple(pixels.shape) for pixels in made}) > 1:
        raise QuietformerError(
            f"the model's image processor gives images of {len(shapes)} sizes, first {sorted(shapes)[0]}; give images of one size"
        )
    return torch.stack(made)


def _prepared(image: Image.Image, processor: Any) -> Tensor:
    try:
        pixels = torch.as_tensor(processor(image, return_tensors="pt")["pixel_values"])[0].float()
    except Exception as error:  # whatever a setting that makes no sense leads to
        raise QuietformerError(
            f"the model's image processor does not take an image of {image.width} x {image.height}: {in_one_line(error, 200)}; "
            "put preprocessor_config.json right"
        ) from error
    if not pixels.numel() or not bool(pixels.isfinite().all()):
        raise QuietformerError("the model's image processor gives no usable pixels; put preprocessor_config.json right")
    return pixels


def open_image(source: Path | IO[bytes], *, channels: int, name: str = "") -> Image.Image:
    """An image decoded to grey (one channel) or RGB, upright; `name` is what an error calls it, the path by default.

    Pillow would cut more than 8 bits a channel to white, and leaves photos as the camera was held.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise QuietformerError("images are read with pillow; pip install quietformer[vision]") from None
    if isinstance(source, Path):
        check_regular(source)
    try:
        with Image.open(source) as image:
            if image.mode.startswith(("I", "F")):
                raise ValueError(f"it has more than 8 bits a channel ({image.mode}); scale it to 8 first")
            return ImageOps.exif_transpose(image).convert("L" if channels == 1 else "RGB")
    # Whatever a damaged image makes of a decoder; one that makes memory run out on purpose counts as damaged too.
    except Exception as error:
        raise QuietformerError(f"{name or source} does not decode as an image: {in_one_line(error)}") from None


def digit_images(*, count: int, size: int, channels: int, processor: Any = None) -> tuple[Tensor, Tensor]:
    """Real 8 x 8 digits, scaled up, with their labels; repeated if more are wanted than there are."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise QuietformerError("the digits come with scikit-learn; pip install quietformer[vision]") from None
    digits = load_digits()
    chosen = torch.arange(count) % len(digits.images)
    labels = torch.from_numpy(digits.target)[chosen]
    if processor is not None:
        from PIL import Image

        grey = (Image.fromarray((digits.images[place] * 255 / 16).astype("uint8")) for place in chosen.tolist())
        return processed((image.convert("L" if channels == 1 else "RGB") for image in grey), processor), labels
    pixels = torch.from_numpy(digits.images)[chosen].float()[:, None] / 8 - 1
    scaled = torch.nn.functional.interpolate(pixels, size=(size, size), mode="bilinear", align_corners=False)
    return scaled.expand(-1, channels, -1, -1).contiguous(), labels


def as_models_take(pixels: Tensor) -> Tensor:
    """Pixels of [0, 1] scaled to [-1, 1], which is what models are given."""
    return pixels * 2 - 1


def image_batches(pixels: Tensor, *, batch_size: int, labels: Tensor | None = None) -> Iterator[dict[str, Tensor]]:
    for start in range(0, len(pixels), batch_size):
        some = slice(start, start + batch_size)
        yield {"pixel_values": pixels[some]} | ({} if labels is None else {"labels": labels[some]})
