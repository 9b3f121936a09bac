"""Pairs of texts with a class, such as MNLI's premises and hypotheses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quietformer.config.recipe import DataRecipe, Source
from quietformer.data.text_sources import joined, read_rows
from quietformer.errors import QuietformerError

if TYPE_CHECKING:
    from datasets import Dataset

UNLABELLED = (None, "", "-", -1)
"""What datasets write where annotators could not agree or labels are withheld."""


def pair_rows(sources: tuple[Source, ...], data: DataRecipe) -> Dataset:
    """Columns "text", "second" and "label" of all sources, the unlabelled rows left out."""
    parts = [
        read_rows(source, {source.text: "text", source.second: "second", source.label: "label"}) for source in sources
    ]
    rows = joined(parts)
    rows = rows.filter(lambda row: row["label"] not in UNLABELLED and row["text"] and row["second"])
    if data.limit:
        rows = rows.select(range(min(data.limit, len(rows))))
    if not len(rows):
        raise QuietformerError(f"{sources[0].name} holds no labelled pairs")
    return rows


def class_names(rows: Dataset) -> list[str]:
    """The classes by name, in the dataset's own order where it has one."""
    return list(_names(rows) or sorted({str(label) for label in rows["label"]}))


def _names(rows: Dataset) -> list[str] | None:
    names: list[str] | None = getattr(rows.features["label"], "names", None)
    return names


def encode_pairs(rows: Dataset, tokenizer: Any, classes: list[str], data: DataRecipe) -> Dataset:
    """Token ids of each pair, cut to the length, and the number of its class under "labels"."""
    numbers, names = {name: number for number, name in enumerate(classes)}, _names(rows)

    def encode(batch: dict[str, list[Any]]) -> dict[str, Any]:
        found = tokenizer(batch["text"], batch["second"], truncation=True, max_length=data.length)
        # By name: two sources may number the same classes differently.
        labels = [names[label] if names else str(label) for label in batch["label"]]
        if strangers := {label for label in labels if label not in numbers}:
            raise QuietformerError(f"validation has the class {min(strangers)!r}, which is not among those trained on")
        return {**found, "labels": [numbers[label] for label in labels]}

    return rows.map(encode, batched=True, remove_columns=rows.column_names, desc="tokenising")
