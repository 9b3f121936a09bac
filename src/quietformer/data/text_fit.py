"""Whether text suits a tokenizer: how much of it is unknown to it, and into how many tokens it cuts a word."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from quietformer.errors import QuietformerError, warn
from quietformer.results import numbers

LOOKED_AT = 200
"""Texts that are looked at, and characters of each: enough for a share, whatever the length of the texts."""
LONGEST = 2000

NOTICED, REFUSED = 0.02, 0.3
"""Share of unknown tokens that is worth a warning, and past which a model reads something else than the text."""

CUT_SMALL, LONG_WORD = 4.0, 20
"""Tokens a word that are worth a warning, in writing with spaces: where words are shorter than so many characters."""

REMEDY = "give text of the model's kind (--texts), or the tokenizer that the model was trained with (--tokenizer)"


@dataclass(frozen=True)
class TextFit:
    """How a tokenizer reads a text."""

    unknown: float
    """Share of the tokens that stand for what the tokenizer does not know."""
    tokens_per_word: float | None
    """None where nothing separates words."""


class Watched:
    """Texts as they are, of which the first that are read are kept to look at."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts, self.seen = iter(texts), list[str]()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        text = next(self.texts)
        if len(self.seen) < LOOKED_AT:
            self.seen.append(text[:LONGEST])
        return text


def text_fit(texts: Iterable[str], tokenizer: Any) -> TextFit:
    """How the tokenizer reads these texts."""
    tokens = unknown = words = characters = 0
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        tokens, unknown = tokens + len(ids), unknown + ids.count(tokenizer.unk_token_id)
        words, characters = words + len(text.split()), characters + len(text)
    spaced = words and characters / words < LONG_WORD
    return TextFit(unknown / max(1, tokens), tokens / words if spaced else None)


def check_fit(texts: Iterable[str], tokenizer: Any, name: str) -> TextFit:
    """The same; a warning where the tokenizer does not suit the text, an error where it knows too little of it."""
    fit = text_fit(texts, tokenizer)
    share = numbers.percent(fit.unknown, 0 if fit.unknown >= 0.1 else 1)
    if fit.unknown > REFUSED:
        raise QuietformerError(
            f"{share} of the tokens of {name} are unknown to the model's tokenizer, so nothing can be measured on it; {REMEDY}"
        )
    if fit.unknown > NOTICED:
        warn(f"{share} of the tokens of {name} are unknown to the model's tokenizer; {REMEDY}")
    elif fit.tokens_per_word is not None and fit.tokens_per_word > CUT_SMALL:
        warn(
            f"the model's tokenizer cuts a word of {name} into {numbers.one_place(fit.tokens_per_word)} tokens, so it hardly "
            f"knows this language; {REMEDY}"
        )
    return fit
