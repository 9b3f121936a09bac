"""Images from a folder, or scikit-learn's digits, as batches of pixel values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from quietformer.errors import QuietformerError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm")


def folder_images(folder: Path, *, count: int, size: int, channels: int) -> Tensor:
    """Up to `count` images of a folder and its subfolders, in order of name, scaled to size x size and to [-1, 1]."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise QuietformerError("images are read with pillow; pip install quietformer[vision]") from None
    if not folder.is_dir():
        raise QuietformerError(f"{folder} is not a folder of images")
    paths = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in SUFFIXES][:count]
    if not paths:
        raise QuietformerError(f"{folder} holds no images ({', '.join(SUFFIXES)})")
    pixels = []
    for path in paths:
        try:
            with Image.open(path) as image:
                small = image.convert("L" if channels == 1 else "RGB").resize((size, size))
                data = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8)
        except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
            raise QuietformerError(f"{path} does not decode as an image: {error}") from None
        pixels.append(data.view(size, size, -1).permute(2, 0, 1).float() / 127.5 - 1)
    return torch.stack(pixels)


def digit_images(*, count: int, size: int, channels: int) -> tuple[Tensor, Tensor]:
    """Real 8 x 8 digits, scaled up, with their labels; repeated if more are wanted than there are."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise QuietformerError("the digits come with scikit-learn; pip install quietformer[vision]") from None
    digits = load_digits()
    chosen = torch.arange(count) % len(digits.images)
    pixels = torch.from_numpy(digits.images)[chosen].float()[:, None] / 8 - 1
    scaled = torch.nn.functional.interpolate(pixels, size=(size, size), mode="bilinear", align_corners=False)
    return scaled.expand(-1, channels, -1, -1).contiguous(), torch.from_numpy(digits.target)[chosen]


def image_batches(pixels: Tensor, *, batch_size: int) -> Iterator[dict[str, Tensor]]:
    for start in range(0, len(pixels), batch_size):
        yield {"pixel_values": pixels[start : start + batch_size]}
