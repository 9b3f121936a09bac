"""Texts, and pairs of texts, as inputs of an exported model, made by the tokenizer in its folder."""

# B texts, T tokens

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from quietformer.errors import QuietformerError
from quietformer.models.sentence_folder import SentenceSettings

Pair = tuple[str, str]

KEPT = ("input_ids", "attention_mask", "token_type_ids")
"""What a graph may take of what a tokenizer gives."""


class TextInputs:
    """A tokenizer, used as sentence-transformers uses it."""

    def __init__(self, tokenizer: Any, settings: SentenceSettings) -> None:
        self.tokenizer, self.settings = tokenizer, settings
        self.lock = threading.Lock()
        """Tokenizers remember how the last texts were cut, so threads take turns."""
        self.lowers_texts = settings.do_lower_case and not lower_(tokenizer)

    def batch(self, texts: Sequence[str | Pair], prompt: str | None, longest: int | None) -> dict[str, Tensor]:
        """Texts with the prompt before each, padded to the longest of them; with `prompt_length` where it is not pooled."""
        given = [f"{prompt}{text}" for text in texts] if prompt else list(texts)
        with self.lock:
            tokens = self._tokens(given, longest)
            found = dict(self.tokenizer.pad(tokens, padding=True, return_tensors="pt"))
            if prompt and not self.settings.include_prompt:
                found["prompt_length"] = torch.tensor(self._prompt_tokens(prompt, longest))
        return found

    def batches(
        self, texts: Sequence[str | Pair], size: int, prompt: str | None, longest: int | None
    ) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
        """The places of texts and their batch, the longest first; one batch is tokenized at a time."""
        if size < 1:
            raise QuietformerError(f"batch_size must be at least 1, got {size}")
        order = sorted(range(len(texts)), key=lambda place: -_characters(texts[place]))
        for begin in range(0, len(order), size):
            places = order[begin : begin + size]
            yield places, self.batch([texts[place] for place in places], prompt, longest)

    def _tokens(self, given: Sequence[str | Pair], longest: int | None) -> dict[str, list[list[int]]]:
        if self.lowers_texts:
            given = [one.lower() if isinstance(one, str) else (one[0].lower(), one[1].lower()) for one in given]
        if given and not isinstance(given[0], str):
            texts: tuple[list[str], ...] = ([one[0] for one in given], [one[1] for one in given])
        else:
            texts = ([str(one) for one in given],)
        found = self.tokenizer(*texts, truncation=longest is not None, max_length=longest)
        return {name: found[name] for name in KEPT if name in found}

    def _prompt_tokens(self, prompt: str, longest: int | None) -> int:
        """How many tokens a prompt is, without a special one at its end."""
        tokens = self._tokens([prompt], longest)["input_ids"][0]
        return len(tokens) - (tokens[-1:] != [] and tokens[-1] in self.tokenizer.all_special_ids)


def lower_(tokenizer: Any) -> bool:
    """Have a tokenizer write texts in lower case, but not its special tokens; False if it cannot be told to."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return False
    from tokenizers.normalizers import Lowercase, Normalizer
    from tokenizers.normalizers import Sequence as Normalizers

    before: list[Normalizer] = [] if backend.normalizer is None else [backend.normalizer]
    backend.normalizer = Normalizers([Lowercase(), *before])
    return True


def checked_texts(texts: Sequence[Any]) -> list[str]:
    """The same, if all of them are texts."""
    found = list(texts)
    if wrong := next((text for text in found if not isinstance(text, str)), None):
        raise QuietformerError(f"texts are a text or a list of texts, got {type(wrong).__name__} in the list")
    return found


def checked_pairs(texts: Sequence[Any]) -> list[str] | list[Pair]:
    """The same, if all of them are texts or all of them pairs of texts."""
    found = list(texts)
    pairs = [tuple(one) for one in found if isinstance(one, tuple | list)]
    if not pairs:
        return checked_texts(found)
    if len(pairs) < len(found):
        raise QuietformerError("texts and pairs of texts are in one list; give two lists")
    if wrong := next((pair for pair in pairs if [type(one) for one in pair] != [str, str]), None):
        kinds = ", ".join(type(one).__name__ for one in wrong)
        raise QuietformerError(f"a pair is two texts, got ({kinds}); give tuples such as (question, passage)")
    return [(first, second) for first, second in pairs]


def _characters(text: str | Pair) -> int:
    return len(text) if isinstance(text, str) else len(text[0]) + len(text[1])
