"""Where outliers sit: hidden dimensions, positions, tokens, heads."""

# B sequences, T tokens, d features

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from quietformer.results.inspect import OutlierDimension, OutlierToken, Place, TensorOutliers
from quietformer.results.labels import printable

FEW = 0.95
"""The dimensions named are the fewest that hold this share of the outliers."""


class OutlierTally:
    """Counts of outliers of one site over the data, and how large they get in each dimension."""

    def __init__(self, width: int) -> None:
        self.by_dimension = torch.zeros(width, dtype=torch.int64)
        self.largest = torch.zeros(width)
        self.by_position = torch.zeros(0, dtype=torch.int64)
        self.by_token: Counter[int] = Counter()

    def add(self, x_BTd: Tensor, outlier_BTd: Tensor, tokens_BT: Tensor | None) -> None:
        self.by_dimension += outlier_BTd.sum((0, 1))
        self.largest = torch.maximum(self.largest, (x_BTd.abs() * outlier_BTd).amax((0, 1)).float())
        by_position = outlier_BTd.sum((0, 2))
        if len(by_position) > len(self.by_position):
            grown = torch.zeros(len(by_position), dtype=torch.int64)
            grown[: len(self.by_position)] = self.by_position
            self.by_position = grown
        self.by_position[: len(by_position)] += by_position
        if tokens_BT is not None and tokens_BT.shape == outlier_BTd.shape[:2]:
            per_token = outlier_BTd.sum(-1)
            hit = per_token > 0
            for token, count in zip(tokens_BT[hit].tolist(), per_token[hit].tolist(), strict=True):
                self.by_token[token] += count

    @property
    def total(self) -> int:
        return int(self.by_dimension.sum())

    def few_dimensions(self, most: int = 8) -> list[int]:
        """The fewest dimensions that hold nearly all outliers; none if those are not few."""
        order = self.by_dimension.argsort(descending=True, stable=True)
        held = self.by_dimension[order].cumsum(0)
        enough = int((held < FEW * self.total).sum()) + 1
        return order[:enough].tolist() if self.total and enough <= most else []

    def tensor_outliers(self, place: Place, names: TokenNames, d_head: int | None) -> TensorOutliers:
        """The counts as a report holds them; `names` gives a token its text, `d_head` a dimension its head."""
        dimensions = [
            OutlierDimension(
                dimension=index,
                count=int(self.by_dimension[index]),
                largest=float(self.largest[index]),
                head=None if d_head is None else index // d_head,
            )
            for index in self.by_dimension.nonzero().flatten().tolist()
        ]
        delimiters = sum(count for token, count in self.by_token.items() if names.is_delimiter(token))
        return TensorOutliers(
            site=place.site,
            layer=place.layer,
            total=self.total,
            few_dimensions=self.few_dimensions(),
            dimensions=sorted(dimensions, key=lambda row: -row.count)[:64],
            positions=self.by_position.tolist(),
            tokens=[
                OutlierToken(token=names.text(token), id=token, count=count)
                for token, count in self.by_token.most_common(20)
            ],
            delimiter_share=delimiters / self.total if self.total and self.by_token and names.known else None,
        )


class TokenNames:
    """Texts of tokens, safe to print: they come from other people's files and may hold control characters."""

    def __init__(self, text: Callable[[int], str | None] | None, special: frozenset[int] = frozenset()) -> None:
        self.known = text is not None
        self._given = text or str
        self.special = special

    @classmethod
    def of(cls, tokenizer: Any) -> Self:
        """The names a tokenizer has; without one, tokens are known by their numbers."""
        if tokenizer is None:
            return cls(None)
        return cls(tokenizer.convert_ids_to_tokens, frozenset(tokenizer.all_special_ids))

    def text(self, token: int) -> str:
        return printable(self._text(token))

    def _text(self, token: int) -> str:
        """Its number, where the tokenizer has no text for it."""
        found = self._given(token)
        return str(token) if found is None else found

    def is_delimiter(self, token: int) -> bool:
        """[SEP], [CLS], '.', ',' and the like: special tokens and punctuation, which carry little of a text's meaning."""
        bare = self._text(token).removesuffix("</w>").strip("▁ĠĊ# \n\t")
        return token in self.special or all(unicodedata.category(character)[0] in "PZC" for character in bare)
