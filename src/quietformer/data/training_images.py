"""Images with classes to train on: decoded one at a time, cropped at random for training, plainly for evaluation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from quietformer.config.recipe import AugmentRecipe, Source
from quietformer.data.image_batches import class_order, digit_images, image_paths, open_image
from quietformer.data.image_tables import read_hub, read_tables, table_files
from quietformer.errors import QuietformerError

if TYPE_CHECKING:
    from PIL import Image

ASPECTS = (3 / 4, 4 / 3)
"""Width over height of random crops, as Inception was trained."""

TRIES = 10
"""Crops are drawn so often before one that does not fit gives way to the largest central one."""

DIGITS = 1797
"""So many scikit-learn has; `digit_images` would repeat them after that."""


class Images(Protocol):
    """One source: its classes, the class of every image, and images that are decoded when they are asked for."""

    classes: list[str]
    labels: np.ndarray

    def decode(self, index: int, channels: int) -> Image.Image: ...


class Folder:
    """A folder whose subfolders are the classes, or of images nobody asks the class of."""

    def __init__(self, folder: Path, *, labelled: bool = True) -> None:
        self.paths = image_paths(folder)
        if not labelled:
            self.classes, self.labels = [""], np.zeros(len(self.paths), dtype=np.int64)
            return
        stray = next((path for path in self.paths if path.parent == folder), None)
        if stray is not None:
            raise QuietformerError(f"{stray} is in no class; put the images of a class in a folder of its name")
        names = [path.relative_to(folder).parts[0] for path in self.paths]
        self.classes = class_order(set(names))
        places = {name: place for place, name in enumerate(self.classes)}
        self.labels = np.array([places[name] for name in names])

    def decode(self, index: int, channels: int) -> Image.Image:
        return open_image(self.paths[index], channels=channels)


class Digits:
    """scikit-learn's handwritten digits, 8 x 8 and grey."""

    def __init__(self) -> None:
        pixels, labels = digit_images(count=DIGITS, size=8, channels=1)
        self.pixels = ((pixels[:, 0] + 1) / 2).numpy()
        self.labels = labels.numpy()
        self.classes = [str(digit) for digit in range(10)]

    def decode(self, index: int, channels: int) -> Image.Image:
        from PIL import Image

        return Image.fromarray(self.pixels[index])  # floating point, so that none of the 17 greys is rounded


class ImageRows:
    """Images of one or more sources under one list of classes, loaded at one size."""

    def __init__(
        self, parts: list[Images], classes: list[str], *, size: int, channels: int, augment: AugmentRecipe
    ) -> None:
        self.classes = classes
        self.size, self.channels, self.augment = size, channels, augment
        self._parts = parts
        self._starts = np.cumsum([0, *(len(part.labels) for part in parts)])
        places = [np.array([classes.index(name) for name in part.classes]) for part in parts]
        self._labels = np.concatenate([place[part.labels] for place, part in zip(places, parts, strict=True)])
        self._rows = np.arange(len(self._labels))

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def labels(self) -> np.ndarray:
        """The class of every row, by its place in `classes`."""
        chosen: np.ndarray = self._labels[self._rows]
        return chosen

    def only(self, rows: np.ndarray) -> ImageRows:
        """The given rows of these, in the given order."""
        part = object.__new__(ImageRows)
        part.__dict__.update(self.__dict__, _rows=self._rows[rows])
        return part

    def load(self, index: int, rng: np.random.Generator | None) -> tuple[Tensor, int]:
        """Pixels (C, S, S) in [0, 1] and the label; with a generator cropped by what it draws, without one plainly."""
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        row = self._rows[index]
        part = int(np.searchsorted(self._starts, row, side="right")) - 1
        image = self._parts[part].decode(int(row - self._starts[part]), self.channels)
        resampling = _filter(self.augment.interpolation, rng)
        box = central_box(*image.size)
        if rng is not None and self.augment.crop is not None:
            # Cut out first: `box` below would let pixels around the crop into its edges.
            image = image.crop(random_box(*image.size, self.augment.crop, rng))
            box = (0, 0, *image.size)
        image = image.resize((self.size, self.size), resampling, box=box)
        return _pixels(image, self.channels), int(self._labels[row])


def central_box(width: int, height: int) -> tuple[float, float, float, float]:
    """The largest central square: scaling it is scaling the shorter side and cutting the longer one."""
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def random_box(
    width: int, height: int, share: tuple[float, float], rng: np.random.Generator
) -> tuple[int, int, int, int]:
    """A box of a random share of the area and a random aspect, somewhere in the image."""
    for _ in range(TRIES):
        area = width * height * rng.uniform(*share)
        aspect = math.exp(rng.uniform(math.log(ASPECTS[0]), math.log(ASPECTS[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            return left, top, left + w, top + h
    w = min(width, round(height * ASPECTS[1]))
    h = min(height, round(width / ASPECTS[0]))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def _filter(interpolation: str, rng: np.random.Generator | None) -> Image.Resampling:
    from PIL import Image

    if interpolation == "random":
        # Evaluation has to be the same each time; bicubic is what vision transformers are evaluated with.
        interpolation = "bicubic" if rng is None or rng.random() < 0.5 else "bilinear"
    return Image.Resampling.BICUBIC if interpolation == "bicubic" else Image.Resampling.BILINEAR


def _pixels(image: Image.Image, channels: int) -> Tensor:
    values = torch.from_numpy(np.array(image))
    scaled = values.float().div(255) if values.dtype == torch.uint8 else values.clamp(0, 1)  # bicubic overshoots
    return scaled[None].repeat(channels, 1, 1) if scaled.dim() == 2 else scaled.permute(2, 0, 1).contiguous()


def image_rows(
    sources: tuple[Source, ...],
    *,
    shape: tuple[int, int],
    augment: AugmentRecipe,
    classes: list[str] | None = None,
    limit: int = 0,
    labelled: bool = True,
) -> ImageRows:
    """The images of all sources; the first source says what the classes are, unless they are given or not asked for.

    `shape` is the side of an image and its number of channels.
    """
    size, channels = shape
    if channels not in (1, 3):
        raise QuietformerError(f"images have 1 or 3 channels, and the model asks for {channels}")
    parts: list[Images] = [_read(source, labelled) for source in sources]
    known = list(parts[0].classes if classes is None else classes)
    for source, part in zip(sources, parts, strict=True):
        stranger = next((name for name in part.classes if name not in known), None)
        if stranger is not None:
            some = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "")
            raise QuietformerError(f"{source.name} has the class {stranger!r}, which is none of {some}")
    rows = ImageRows(parts, known, size=size, channels=channels, augment=augment)
    return rows.only(np.sort(_in_turn(rows.labels, limit, seed=0))) if 0 < limit < len(rows) else rows


def _read(source: Source, labelled: bool) -> Images:
    if source.builtin == "digits":
        return Digits()
    if source.builtin:
        raise QuietformerError(f"{source.builtin!r} holds text; images are 'digits', a folder or a dataset")
    if source.dataset:
        return read_hub(source)
    path = Path(source.path)
    if not path.exists():
        raise QuietformerError(f"{path} is not there; give a folder of images whose subfolders are the classes")
    return read_tables(source, path) if table_files(path, source.split) else Folder(path, labelled=labelled)


def split_rows(rows: ImageRows, hold_out: int, seed: int = 0) -> tuple[ImageRows, ImageRows]:
    """What is trained on and what is held out, of all classes alike; the same for the same seed."""
    if not 0 < hold_out < len(rows):
        raise QuietformerError(
            f"{len(rows)} images are too few to hold out {hold_out}; lower data.hold_out or give data.validation"
        )
    held = np.sort(_in_turn(rows.labels, hold_out, seed))
    return rows.only(np.setdiff1d(np.arange(len(rows)), held)), rows.only(held)


def _in_turn(labels: np.ndarray, count: int, seed: int) -> np.ndarray:
    """The places of `count` images drawn at random, one of every class before a second of any."""
    order = np.random.default_rng(seed).permutation(len(labels))
    by_class = np.argsort(labels[order], kind="stable")
    counts = np.bincount(labels)
    turn = np.empty(len(labels), dtype=np.int64)
    turn[by_class] = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return order[np.argsort(turn, kind="stable")[:count]]
