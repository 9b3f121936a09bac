"""Pairs of texts with a class, such as MNLI's premises and hypotheses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quietformer.data.corpora import read_rows
from quietformer.errors import QuietformerError
from quietformer.recipe import DataRecipe, Source

if TYPE_CHECKING:
    from datasets import Dataset

UNLABELLED = (None, "", "-", -1)
"""What datasets write where annotators could not agree or labels are withheld."""


def pair_rows(sources: tuple[Source, ...], data: DataRecipe) -> Dataset:
    """Columns "text", "second" and "label" of all sources, the unlabelled rows left out."""
    from datasets import concatenate_datasets

    parts = [
        read_rows(source, {source.text: "text", source.second: "second", source.label: "label"}) for source in sources
    ]
    rows = parts[0] if len(parts) == 1 else concatenate_datasets(parts)
    rows = rows.filter(lambda row: row["label"] not in UNLABELLED and row["text"] and row["second"])
    if data.limit:
        rows = rows.select(range(min(data.limit, len(rows))))
    if not len(rows):
        raise QuietformerError(f"{sources[0].name} holds no labelled pairs")
    return rows


def class_names(rows: Dataset) -> list[str]:
    """The classes by name, in the dataset's own order where it has one."""
    feature = rows.features["label"]
    if hasattr(feature, "names"):
        return list(feature.names)
    return sorted({str(label) for label in rows["label"]})


def encode_pairs(rows: Dataset, tokenizer: Any, classes: list[str], data: DataRecipe) -> Dataset:
    """Token ids of each pair, cut to the length, and the number of its class under "labels"."""
    named = hasattr(rows.features["label"], "names")
    numbers = {name: number for number, name in enumerate(classes)}

    def encode(batch: dict[str, list[Any]]) -> dict[str, Any]:
        found = tokenizer(batch["text"], batch["second"], truncation=True, max_length=data.length)
        labels = batch["label"] if named else [str(label) for label in batch["label"]]
        if strangers := {label for label in labels if not named and label not in numbers}:
            raise QuietformerError(f"validation has the class {min(strangers)!r}, which is not among those trained on")
        return {**found, "labels": labels if named else [numbers[label] for label in labels]}

    return rows.map(encode, batched=True, remove_columns=rows.column_names, desc="tokenising")
