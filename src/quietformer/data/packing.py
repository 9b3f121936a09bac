"""Texts tokenised, joined and cut into sequences of one length."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from quietformer.config.recipe import DataRecipe
from quietformer.data.text_batches import PIECE, pieces, special_tokens
from quietformer.errors import QuietformerError

if TYPE_CHECKING:
    from datasets import Dataset

TEXTS_AT_ONCE = 1000
"""Texts joined before they are cut; what is left over of each thousand, less than a sequence, is lost."""


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
        return fingerprint(whole, self.by_text, PIECE)

    def tokenise(self, batch: dict[str, list[Any]]) -> dict[str, list[list[int]]]:
        """The tokens of each text; none of what is no text."""
        ids: list[list[int]] = [[] for _ in batch["text"]]
        real = [place for place, text in enumerate(batch["text"]) if isinstance(text, str) and text.strip()]
        if real:
            short = [place for place in real if len(batch["text"][place]) <= PIECE]
            texts = [batch["text"][place] for place in short]
            found = self.tokenizer(texts, add_special_tokens=self.by_text, verbose=False)["input_ids"] if short else []
            for place, tokens in zip(short, found, strict=True):
                ids[place] = tokens
            for place in set(real) - set(short):
                ids[place] = self._in_pieces(batch["text"][place])
        return {"input_ids": ids}

    def _in_pieces(self, text: str) -> list[int]:
        before, after = special_tokens(self.tokenizer) if self.by_text else ([], [])
        found = self.tokenizer(list(pieces(text)), add_special_tokens=False, verbose=False)["input_ids"]
        return [*before, *(token for tokens in found for token in tokens), *after]

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
