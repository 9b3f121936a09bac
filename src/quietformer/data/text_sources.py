"""Text to train on: read from files, datasets or the built-in text, tokenised, joined and cut, in parallel and cached."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from glob import glob
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quietformer.config.recipe import DataRecipe, Source
from quietformer.data.builtin_text import PACKAGES, builtin_paragraphs
from quietformer.data.text_batches import DATASET_REMEDY, silence_datasets
from quietformer.errors import QuietformerError, in_one_line, root_of
from quietformer.files import check_regular

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

NULL = b"null"

READERS = {
    ".txt": ("text", {}), ".md": ("text", {}), ".csv": ("csv", {}), ".tsv": ("csv", {"sep": "\t", "quoting": 3}),
    ".json": ("json", {}), ".jsonl": ("json", {}), ".parquet": ("parquet", {}),
}  # fmt: skip
"""The reader of `datasets` for each kind of file, and how it is told."""


def read_rows(
    source: Source, columns: dict[str, str], *, streaming: bool = False, limit: int = 0
) -> Dataset | IterableDataset:
    """The rows of a source with only the named columns, under their new names: {"premise": "text"}."""
    import datasets

    silence_datasets()
    try:
        rows = _open(source, streaming, limit)
    except StopIteration as error:  # of JSON in which not one row was found
        raise QuietformerError(
            f"{source.name} cannot be read: no row in it is a JSON object; write one on each line"
        ) from error
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        if isinstance(error, QuietformerError):
            raise
        remedy = DATASET_REMEDY if source.dataset else "restore or correct the file"
        raise QuietformerError(f"{source.name} cannot be read: {in_one_line(root_of(error), 200)}; {remedy}") from error
    # A stream whose columns are not written down anywhere has those of its first row.
    there = list(rows.column_names or next(iter(rows), {}))
    if missing := [name for name in columns if name not in there]:
        raise QuietformerError(f"{source.name} has no column {missing[0]!r}; it has {', '.join(map(repr, there))}")
    rows = rows.select_columns(list(columns))
    renamed = {old: new for old, new in columns.items() if old != new}
    return rows.rename_columns(renamed) if renamed else rows


def _open(source: Source, streaming: bool, limit: int) -> Dataset | IterableDataset:
    from datasets import Dataset, IterableDataset, load_dataset

    if source.builtin == "embedded":
        # The built-in text is that of the installed packages: named, so that a cache made with others is not taken.
        versions = {"python": sys.version, **{package: version(package) for package in PACKAGES}}
        maker = IterableDataset if streaming else Dataset
        return maker.from_generator(_embedded_rows, gen_kwargs={"versions": versions, "limit": limit})
    if source.builtin:
        raise QuietformerError(f"{source.builtin} are images; a language model trains on text")
    if source.dataset:
        return load_dataset(source.dataset, source.config or None, split=source.split, streaming=streaming)
    files = data_files(source.path)
    reader, options = READERS[Path(files[0]).suffix.lower()]
    if reader == "json":
        for file in files:
            _check_rows(file)
    rows = load_dataset(reader, data_files=files, split="train", streaming=streaming, **options)
    if not streaming and reader in ("json", "parquet"):
        rows.data.table.validate(full=True)  # text that is no text is found out here, by the name of its file
    return rows


def _check_rows(file: str) -> None:
    """Refuse a row that is null: pyarrow ends the process where a block of rows begins with one."""
    with open(file, "rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip() == NULL:
                raise QuietformerError(f"{file}: line {number} is null and no row; remove it")


def _embedded_rows(versions: dict[str, str], limit: int) -> Iterator[dict[str, str]]:
    for paragraph in itertools.islice(builtin_paragraphs(), limit or None):
        yield {"text": paragraph}


def data_files(path: str) -> list[str]:
    """The files a path names: itself, those a pattern matches, or those of a folder; all of one kind, none empty."""
    place = Path(path).expanduser()
    if place.is_dir():
        found = [file for file in sorted(place.rglob("*")) if file.suffix.lower() in READERS]
    else:
        found = [Path(file) for file in sorted(glob(str(place), recursive=True))]
    if not found:
        what = f"holds no data files ({', '.join(READERS)})" if place.is_dir() else "is not there"
        raise QuietformerError(f"{path} {what}; for a dataset of the hub write {{dataset: {path}}}")
    kinds = {READERS.get(file.suffix.lower(), ("",))[0] for file in found}
    if "" in kinds:
        raise QuietformerError(f"{found[0]} is of no kind that is read here ({', '.join(READERS)})")
    if len(kinds) > 1:
        raise QuietformerError(f"{path} mixes {' and '.join(sorted(kinds))} files; name one kind, e.g. {path}/*.txt")
    for file in found:
        check_regular(file)
    full = [str(file) for file in found if file.stat().st_size]
    if not full:
        raise QuietformerError(f"{path} is empty; give a file with text in it")
    return full


def joined(parts: list[Any]) -> Any:
    """Several sources in a row."""
    from datasets import concatenate_datasets

    if len(parts) == 1:
        return parts[0]
    try:
        return concatenate_datasets(parts)
    except ValueError as error:
        raise QuietformerError(
            f"the sources do not go together: {in_one_line(root_of(error), 200)}; give columns of the same kind"
        ) from error


def texts_of(sources: tuple[Source, ...], data: DataRecipe) -> Dataset | IterableDataset:
    """The texts of all sources, one after another."""
    from datasets import Features, Value

    text = Features({"text": Value("string")})  # readers differ in how long a text they think of
    parts = [
        read_rows(source, {source.text: "text"}, streaming=data.streaming, limit=data.limit).cast(text)
        for source in sources
    ]
    rows = joined(parts)
    if data.limit:
        rows = rows.take(data.limit) if data.streaming else rows.select(range(min(data.limit, len(rows))))
    return rows
