"""Labelled images that the package `datasets` reads: of the hub, in Parquet files, or saved to a folder by it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from quietformer.config.recipe import Source
from quietformer.config.spec_base import nearest
from quietformer.data.image_batches import class_order, open_image
from quietformer.errors import QuietformerError, in_one_line

if TYPE_CHECKING:
    from PIL import Image


class ImageTable:
    """A column of images and a column of classes; images stay encoded until they are asked for."""

    def __init__(self, table: Any, source: Source) -> None:
        from datasets import Image

        for column in (source.image, source.label):
            if column not in table.column_names:
                raise QuietformerError(
                    f"{source.name} has no column {column!r}; it has {', '.join(table.column_names)}"
                )
        self.name, self.column = source.name, source.image
        self.classes, self.labels = _classes(table, source)
        try:
            # Undecoded, so that a damaged image is found by us and named.
            self.table = table.select_columns([source.image]).cast_column(source.image, Image(decode=False))
        except Exception as error:  # whatever the reader below raises, it is the column that is wrong
            raise QuietformerError(
                f"column {source.image!r} of {source.name} holds no images: {in_one_line(error, 200)}"
            ) from None

    def decode(self, index: int, channels: int) -> Image.Image:
        cell = self.table[index][self.column] or {}
        name = f"row {index} of {self.name}"
        if cell.get("bytes") is not None:
            return open_image(io.BytesIO(cell["bytes"]), channels=channels, name=name)
        if not cell.get("path"):
            raise QuietformerError(f"{name} holds no image")
        return open_image(Path(cell["path"]), channels=channels)


def _classes(table: Any, source: Source) -> tuple[list[str], np.ndarray]:
    names = getattr(table.features[source.label], "names", None)
    values = table[source.label][:]
    if not values:
        raise QuietformerError(f"{source.name} holds no images in split {source.split!r}")
    if names is None:
        if any(not isinstance(value, (int, str)) for value in values):
            raise QuietformerError(
                f"column {source.label!r} of {source.name} must hold one class a row, as number or name"
            )
        names = class_order({str(value) for value in values})
        places = {name: place for place, name in enumerate(names)}
        return names, np.array([places[str(value)] for value in values], dtype=np.int64)
    if any(value is None or not 0 <= value < len(names) for value in values):
        raise QuietformerError(
            f"{source.name} has images without a class in split {source.split!r}; choose another split"
        )
    return list(names), np.array(values, dtype=np.int64)


def table_files(path: Path, split: str) -> list[Path]:
    """The Parquet files of a path, or what marks a folder that `datasets` saved; nothing for a folder of images."""
    if path.is_file():
        return [path] if path.suffix == ".parquet" else []
    saved = [path / name for name in ("dataset_dict.json", "state.json") if (path / name).is_file()]
    # Where the hub has them; looking everywhere would list a million files of a folder of images.
    return saved or sorted(file for place in (path, path / "data", path / split) for file in place.glob("*.parquet"))


def read_tables(source: Source, path: Path) -> ImageTable:
    """A Parquet file, a folder of them, or a folder saved by `datasets`."""
    import datasets

    files = table_files(path, source.split)
    try:
        if files[0].suffix == ".json":
            table = datasets.load_from_disk(str(path))
        else:
            # As the hub names them: train-00000-of-00002.parquet, or a folder for each split.
            of_split = [file for file in files if source.split in (file.stem.split("-")[0], file.parent.name)]
            table = datasets.load_dataset(
                "parquet", data_files=[str(file) for file in of_split or files], split="train"
            )
    except Exception as error:  # the reader's own errors are of many kinds
        raise QuietformerError(f"{path} cannot be read as a dataset: {in_one_line(error, 200)}") from None
    if isinstance(table, dict):
        if source.split not in table:
            raise QuietformerError(f"{path} has no split {source.split!r}{nearest(source.split, table)}")
        table = table[source.split]
    return ImageTable(table, source)


def read_hub(source: Source) -> ImageTable:
    """A dataset of the hub by its name."""
    import datasets

    try:
        table = datasets.load_dataset(source.dataset, source.config or None, split=source.split)
    except Exception as error:  # no network, no such name, no such split: each is an error of its own kind
        raise QuietformerError(f"dataset {source.name} cannot be read: {in_one_line(error, 200)}") from None
    return ImageTable(table, source)
