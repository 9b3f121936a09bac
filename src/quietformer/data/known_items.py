"""Known-item retrieval: a paragraph's first sentence is to find the rest of it among the rests of all paragraphs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from quietformer.architectures.forward import Batch
from quietformer.data.passages import SENTENCE_END
from quietformer.data.text_batches import pieces, text_batches
from quietformer.data.tokenizers import padding_of

FEWEST = 20
"""Below so many paragraphs a random order would find many of them among the first ten."""

SEARCHED = 50
"""So many texts are read for each paragraph that is wanted, before the source is given up."""

WORDS = 4
"""A sentence or rest of fewer words asks for nothing in particular."""


@dataclass(frozen=True)
class KnownItems:
    """Batches of queries and of documents, both in the same order: each query has one document."""

    queries: list[Batch]
    documents: list[Batch]


def known_items(texts: Iterable[str], count: int) -> list[tuple[str, str]]:
    """Up to `count` pairs of a first sentence and the rest of its paragraph; every sentence and every rest once."""
    found: dict[str, str] = {}
    rests: set[str] = set()
    for read, text in enumerate(texts):
        if len(found) >= count or read >= SEARCHED * count:
            break
        first, *others = SENTENCE_END.split(text.strip(), maxsplit=1)
        rest = others[0] if others else ""
        if min(len(first.split()), len(rest.split())) >= WORDS and first not in found and rest not in rests:
            found[first] = rest
            rests.add(rest)
    return list(found.items())


def known_item_batches(
    pairs: list[tuple[str, str]], tokenizer: Any, *, length: int, batch_size: int
) -> KnownItems | None:
    """Of like length together, so that little is padding; None if there are too few to measure anything."""
    if len(pairs) < FEWEST:
        return None
    queries, documents = ([_tokens(text, tokenizer, length) for text in side] for side in zip(*pairs, strict=True))
    order = sorted(range(len(pairs)), key=lambda place: (len(documents[place]), len(queries[place]), place))
    pad = padding_of(tokenizer)

    def batched(sequences: list[list[int]]) -> list[Batch]:
        return list(text_batches([sequences[place] for place in order], pad=pad, batch_size=batch_size))

    return KnownItems(batched(queries), batched(documents))


def _tokens(text: str, tokenizer: Any, length: int) -> list[int]:
    text = next(pieces(text))  # of a line of many megabytes the rest is cut off anyway
    return list(tokenizer(text, truncation=True, max_length=length, verbose=False)["input_ids"])
