"""Passages: every word of a text once and in order; batches of like length, each row once an epoch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quietformer.config.recipe import DataRecipe, Source
from quietformer.data.collate import PassageBatch
from quietformer.data.passages import SENTENCES, BySize, passage_rows, passages, row_lengths
from quietformer.data.row_order import TokenRows
from quietformer.data.text_sources import texts_of
from quietformer.data.tokenizers import train_tokenizer
from tests.training.recipes import write_prose

words = st.text(alphabet="abc", min_size=1, max_size=5)
sentences = st.lists(words, min_size=1, max_size=4).map(lambda parts: " ".join(parts) + ".")


@given(st.lists(sentences, max_size=20), st.integers(0, 10**6))
def test_passages_are_the_text_in_order(parts, place):
    found = passages(" ".join(parts), place)
    assert " ".join(found) == " ".join(parts)
    assert all(part.count(".") <= max(SENTENCES) for part in found)
    assert found == passages(" ".join(parts), place)


def test_passages_differ_from_place_to_place():
    text = " ".join(f"Sentence {number}." for number in range(40))
    assert len({tuple(map(len, passages(text, place))) for place in range(20)}) > 10


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["some words of text"], vocabulary=300, characters=1000)


def rows_of(path, tokenizer, length):
    data = DataRecipe(train=(Source(path=str(path)),), length=length, unit="passages")
    return passage_rows(texts_of(data.train, data), tokenizer, data)


def test_rows_hold_every_token_between_special_ones(tmp_path, tokenizer):
    text = "One sentence here. " * 30
    (tmp_path / "a.txt").write_text(f"{text}\n\nAnother text, alone.\n")
    rows = rows_of(tmp_path / "a.txt", tokenizer, 16)
    inside = []
    for ids in rows["input_ids"]:
        assert ids[0] == tokenizer.cls_token_id
        assert ids[-1] == tokenizer.sep_token_id
        assert len(ids) <= 16
        inside += ids[1:-1]
    # A leftover below the shortest is dropped, so nearly all of the text is there, and in its order.
    assert tokenizer.decode(inside).replace(" ", "")[:40] == text.replace(" ", "")[:40]
    whole = sum(len(tokenizer(line, add_special_tokens=False)["input_ids"]) for line in (text, "Another text, alone."))
    assert 0.9 * whole <= len(inside) <= 1.1 * whole
    assert row_lengths(rows).tolist() == [len(ids) for ids in rows["input_ids"]]


class Rows:
    def __init__(self, lengths):
        self.lengths = lengths

    def __len__(self):
        return len(self.lengths)

    def take(self, indices, positions):
        return [{"input_ids": np.full(self.lengths[index], index)} for index in indices]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=8, max_size=200), st.integers(1, 8), st.integers(0, 100))
def test_an_epoch_takes_each_row_at_most_once_in_batches_of_like_length(lengths, size, seed):
    an_epoch = len(lengths) // size * size
    dataset = BySize(Rows(lengths), np.array(lengths), 3 * an_epoch, batch_size=size, seed=seed)
    for epoch in range(3):
        taken = [int(dataset[epoch * an_epoch + place]["input_ids"][0]) for place in range(an_epoch)]
        assert len(set(taken)) == len(taken)
    spread = [
        np.ptp([lengths[int(row["input_ids"][0])] for row in batch]) for batch in batches(dataset, size, an_epoch)
    ]
    mixed = [np.ptp(part) for part in np.array(lengths)[:an_epoch].reshape(-1, size)]
    assert np.sum(spread) <= np.sum(mixed) + 50


def batches(dataset, size, count):
    return [dataset.__getitems__(list(range(start, start + size))) for start in range(0, count, size)]


def test_what_a_position_holds_does_not_depend_on_what_was_asked_before():
    lengths = np.random.default_rng(0).integers(1, 40, 100)
    one, other = (BySize(Rows(lengths), lengths, 300, batch_size=4, seed=3) for _ in range(2))
    forward = [int(one[place]["input_ids"][0]) for place in range(250)]
    backward = [int(other[place]["input_ids"][0]) for place in reversed(range(250))]
    assert forward == backward[::-1]


def test_a_batch_is_padded_to_its_longest_and_masked(tmp_path, tokenizer):
    rows = TokenRows(rows_of(write_prose(tmp_path / "text.txt", 3), tokenizer, 24)).take([0, 5, 9], None)
    batch = PassageBatch(0)(rows)
    for row, ids, mask in zip(rows, batch["input_ids"], batch["attention_mask"], strict=True):
        assert ids[mask.bool()].tolist() == row["input_ids"].tolist()
        assert mask.sum() == len(row["input_ids"])
    assert batch["input_ids"].shape[1] == max(len(row["input_ids"]) for row in rows)
