"""Text to train on: read from files, datasets or the embedded prose, tokenised, joined and cut, in parallel and cached."""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
from collections.abc import Iterator
from glob import glob
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from quietformer.data.corpus import PACKAGES, embedded_prose
from quietformer.data.texts import special_tokens
from quietformer.errors import QuietformerError, in_one_line, root_of
from quietformer.recipe import DataRecipe, Source

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

READERS = {
    ".txt": ("text", {}), ".md": ("text", {}), ".csv": ("csv", {}), ".tsv": ("csv", {"sep": "\t", "quoting": 3}),
    ".json": ("json", {}), ".jsonl": ("json", {}), ".parquet": ("parquet", {}),
}  # fmt: skip
"""The reader of `datasets` for each kind of file, and how it is told."""
TEXTS_AT_ONCE = 1000
"""Texts joined before they are cut; what is left over of each thousand, less than a sequence, is lost."""


def read_rows(
    source: Source, columns: dict[str, str], *, streaming: bool = False, limit: int = 0
) -> Dataset | IterableDataset:
    """The rows of a source with only the named columns, under their new names: {"premise": "text"}."""
    import datasets

    datasets.logging.set_verbosity_error()  # what it has to say, we say in one line
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        rows = _open(source, streaming, limit)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        if isinstance(error, QuietformerError):
            raise
        raise QuietformerError(f"{source.name} cannot be read: {in_one_line(root_of(error), 200)}") from error
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
        # The prose is that of the installed packages: named, so that a cache made with others is not taken.
        versions = {"python": sys.version, **{package: version(package) for package in PACKAGES}}
        maker = IterableDataset if streaming else Dataset
        return maker.from_generator(_embedded_rows, gen_kwargs={"versions": versions, "limit": limit})
    if source.builtin:
        raise QuietformerError(f"{source.builtin} are images; a language model trains on text")
    if source.dataset:
        return load_dataset(source.dataset, source.config or None, split=source.split, streaming=streaming)
    files = data_files(source.path)
    reader, options = READERS[Path(files[0]).suffix.lower()]
    return load_dataset(reader, data_files=files, split="train", streaming=streaming, **options)


def _embedded_rows(versions: dict[str, str], limit: int) -> Iterator[dict[str, str]]:
    for paragraph in itertools.islice(embedded_prose(), limit or None):
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


def token_rows(texts: Dataset, tokenizer: Any, data: DataRecipe) -> Dataset:
    """Sequences of exactly `data.length` tokens under "input_ids"; how many processes tokenise changes nothing."""
    from datasets import Features, List, Value

    packer = Packer(tokenizer, data.length, data.special_tokens)
    features = Features({"input_ids": List(Value("int32"))})
    tokens = texts.map(
        packer.tokenise,
        batched=True,
        batch_size=TEXTS_AT_ONCE,
        remove_columns=texts.column_names,
        features=features,
        num_proc=data.processes if data.processes > 1 and len(texts) > TEXTS_AT_ONCE else None,
        # datasets would hash the tokenizer's pickle, which changes when it is first used.
        new_fingerprint=fingerprint(texts._fingerprint, packer.tokenizer_fingerprint),
        desc="tokenising",
    )
    rows = tokens.with_format("arrow").map(
        packer.pack,
        batched=True,
        batch_size=TEXTS_AT_ONCE,
        features=features,
        new_fingerprint=fingerprint(tokens._fingerprint, packer.before, packer.after, packer.room, TEXTS_AT_ONCE),
        desc="joining and cutting",
    )
    if not len(rows):
        raise QuietformerError(
            f"the text is empty, or shorter than one sequence of {data.length} tokens; give more text or a smaller data.length"
        )
    return rows.with_format(None)


def fingerprint(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


class Packer:
    """Texts tokenised, joined and cut into sequences of one length, special tokens around each text or each sequence."""

    def __init__(self, tokenizer: Any, length: int, special: str) -> None:
        before, after = special_tokens(tokenizer)
        self.tokenizer = tokenizer
        self.by_text = special == "text"
        self.before, self.after = ([], []) if self.by_text else (before, after)
        self.room = length - len(self.before) - len(self.after)
        if self.room < 1:
            raise QuietformerError(f"sequences of {length} tokens leave no room for text beside the special tokens")

    @property
    def tokenizer_fingerprint(self) -> str:
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        whole = backend.to_str() if backend is not None else json.dumps(self.tokenizer.get_vocab(), sort_keys=True)
        return fingerprint(whole, self.by_text)

    def tokenise(self, batch: dict[str, list[Any]]) -> dict[str, list[list[int]]]:
        """The tokens of each text; none of what is no text."""
        ids: list[list[int]] = [[] for _ in batch["text"]]
        real = [place for place, text in enumerate(batch["text"]) if isinstance(text, str) and text.strip()]
        if real:
            texts = [batch["text"][place] for place in real]
            found = self.tokenizer(texts, add_special_tokens=self.by_text, verbose=False)["input_ids"]
            for place, tokens in zip(real, found, strict=True):
                ids[place] = tokens
        return {"input_ids": ids}

    def pack(self, table: Any) -> Any:
        """The same tokens joined and cut, as Arrow has them: no list of Python's is made."""
        import pyarrow as pa

        running = table["input_ids"].combine_chunks().flatten().to_numpy()
        count = len(running) // self.room
        inside = running[: count * self.room].reshape(count, self.room)
        before, after = (np.tile(np.asarray(ids, np.int32), (count, 1)) for ids in (self.before, self.after))
        whole = np.concatenate([before, inside, after], axis=1).astype(np.int32)
        offsets = pa.array(np.arange(count + 1, dtype=np.int32) * whole.shape[1])
        return pa.table({"input_ids": pa.ListArray.from_arrays(offsets, pa.array(whole.reshape(-1)))})

    def tokens(self, texts: list[Any]) -> list[int]:
        """The tokens of some texts in a row."""
        return [token for ids in self.tokenise({"text": texts})["input_ids"] for token in ids]

    def windows(self, running: list[int]) -> Iterator[list[int]]:
        for start in range(0, len(running) - self.room + 1, self.room):
            yield [*self.before, *running[start : start + self.room], *self.after]
