"""Training data is a function of seed and position: order, masks and sequences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quietformer.config.recipe import DataRecipe
from quietformer.data.collate import CausalBatch, MaskedBatch
from quietformer.data.packing import Packer, token_rows
from quietformer.data.row_order import InOrder, Positions, TokenRows, as_asked, at_most_a_third, hold_out
from quietformer.data.streaming import Streamed, epoch_texts
from quietformer.data.text_sources import texts_of
from quietformer.data.tokenizers import train_tokenizer
from quietformer.errors import QuietformerError
from tests.training.recipes import write_prose


class Numbers:
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def take(self, indices, positions):
        return [{"number": index} for index in indices]


@settings(deadline=None)
@given(count=st.integers(1, 40), batch=st.integers(1, 9), seed=st.integers(0, 2**32 - 1))
def test_every_epoch_takes_every_example_once(count, batch, seed):
    positions = Positions(Numbers(count), 3 * count, seed)
    at_once = [row["number"] for row in positions.__getitems__(list(range(3 * count)))]
    for epoch in range(3):
        assert sorted(at_once[epoch * count : (epoch + 1) * count]) == list(range(count))
    # In batches, by another reader, from the middle: the same.
    other = Positions(Numbers(count), 3 * count, seed)
    start = count // 2
    in_batches = [
        row["number"]
        for begin in range(start, 3 * count, batch)
        for row in other.__getitems__(list(range(begin, min(begin + batch, 3 * count))))
    ]
    assert in_batches == at_once[start:]


def test_epochs_and_seeds_have_orders_of_their_own():
    def order(seed, epoch):
        positions = Positions(Numbers(50), 200, seed)
        return [row["number"] for row in positions.__getitems__(list(range(50 * epoch, 50 * epoch + 50)))]

    assert len({tuple(order(seed, epoch)) for seed in (0, 1) for epoch in (0, 1, 2)}) == 6


def test_held_out_examples_are_never_trained_on():
    train, validation = hold_out(Numbers(100), 20, "numbers")
    trained = {row["number"] for row in train.take(range(80), None)}
    asked = {row["number"] for row in validation.take(range(20), None)}
    assert trained | asked == set(range(100))
    assert not trained & asked
    with pytest.raises(QuietformerError, match=r"makes 20 numbers and data\.hold_out keeps 20"):
        hold_out(Numbers(20), 20, "numbers")


@pytest.mark.parametrize("total", [2, 3, 20, 59, 60, 100])
def test_of_little_data_at_most_a_third_is_held_out(total):
    train, validation = hold_out(Numbers(total), at_most_a_third(20, total), "numbers")
    assert len(train) + len(validation) == total
    assert 0 < len(validation) <= max(1, len(train) / 2)
    assert (len(validation) == as_asked(20, total)) == (total >= 3 * 20)


@pytest.fixture(scope="module")
def prose(tmp_path_factory):
    return write_prose(tmp_path_factory.mktemp("prose") / "text.txt")


@pytest.fixture(scope="module")
def tokenizer(prose):
    return train_tokenizer(prose.read_text().splitlines(), vocabulary=400, characters=100_000)


def recipe(prose, **fields):
    return DataRecipe(train=str(prose), **({"length": 24} | fields))


def masked(tokenizer, **fields):
    return MaskedBatch(tokenizer, vocabulary=len(tokenizer), **({"probability": 0.15, "seed": 3} | fields))


def rows_of(prose, tokenizer, count, **fields):
    data = recipe(prose, **fields)
    return InOrder(TokenRows(token_rows(texts_of(data.train, data), tokenizer, data))).__getitems__(list(range(count)))


def test_masks_depend_on_the_position_alone(prose, tokenizer):
    rows, collate = rows_of(prose, tokenizer, 12), masked(tokenizer)
    together = collate(rows)
    apart = [collate(rows[begin : begin + 5]) for begin in range(0, 12, 5)]
    for name in ("input_ids", "labels"):
        assert torch.equal(together[name], torch.cat([part[name] for part in apart]))
    elsewhere = collate([row | {"position": row["position"] + 100} for row in rows])
    assert not torch.equal(together["labels"], elsewhere["labels"])


def test_the_share_that_is_asked_for_is_hidden_as_in_bert(prose, tokenizer):
    rows = rows_of(prose, tokenizer, 2000)
    batch = masked(tokenizer)(rows)
    asked = batch["labels"] != -100
    original = torch.tensor(np.stack([row["input_ids"] for row in rows])).long()
    special = torch.isin(original, torch.tensor(tokenizer.all_special_ids))
    assert not bool((asked & special).any())
    assert torch.equal(batch["labels"][asked], original[asked])
    assert torch.equal(batch["input_ids"][~asked], original[~asked])
    assert float(asked.float().sum() / (~special).sum()) == pytest.approx(0.15, abs=0.01)
    hidden = batch["input_ids"][asked] == tokenizer.mask_token_id
    kept = batch["input_ids"][asked] == original[asked]
    assert float(hidden.float().mean()) == pytest.approx(0.8, abs=0.02)
    assert float(kept.float().mean()) == pytest.approx(0.1, abs=0.02)


def test_sequences_are_the_text_cut_up(prose, tokenizer):
    whole = [
        token
        for line in prose.read_text().splitlines()
        for token in tokenizer(line, add_special_tokens=False)["input_ids"]
    ]
    rows = rows_of(prose, tokenizer, 40)
    for number, row in enumerate(rows):
        begin, *inside, end = row["input_ids"].tolist()
        assert (begin, end) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
        assert inside == whole[22 * number : 22 * (number + 1)]


def test_special_tokens_by_text_stay_with_their_texts(prose, tokenizer):
    whole = [token for line in prose.read_text().splitlines() for token in tokenizer(line)["input_ids"]]
    rows = rows_of(prose, tokenizer, 40, special_tokens="text")
    assert [token for row in rows for token in row["input_ids"].tolist()] == whole[: 40 * 24]


def test_a_causal_batch_asks_for_every_token(prose, tokenizer):
    batch = CausalBatch()(rows_of(prose, tokenizer, 3))
    assert torch.equal(batch["input_ids"], batch["labels"])


def test_tokenising_is_cached_by_text_tokenizer_and_length(prose, tokenizer):
    data = recipe(prose)
    texts = texts_of(data.train, data)
    first, again = token_rows(texts, tokenizer, data), token_rows(texts, tokenizer, data)
    assert first.cache_files == again.cache_files != []
    assert token_rows(texts, tokenizer, recipe(prose, length=16)).cache_files != first.cache_files


def test_several_processes_tokenise_as_one_does(tokenizer, tmp_path):
    (tmp_path / "many.txt").write_text("\n".join(f"Line number {number} of a long text." for number in range(2500)))
    found = []
    for processes in (1, 2):
        data = recipe(tmp_path / "many.txt", processes=processes, length=8)
        texts = texts_of(data.train, data)
        # Another fingerprint, or the second would find the cache of the first.
        texts._fingerprint += str(processes)
        rows = token_rows(texts, tokenizer, data)
        found.append([row["input_ids"] for row in rows.with_format(None)])
    assert len(found[0]) > 1000
    assert found[0] == found[1]


def test_a_stream_gives_the_sequences_of_the_text_in_an_order_of_its_own(prose, tokenizer):
    data = recipe(prose, streaming=True)
    texts = texts_of(data.train, data)
    packer = Packer(tokenizer, data.length, data.special_tokens)
    in_order = [tuple(sequence) for sequence in epoch_texts(texts, packer)]
    stream = Streamed(texts, packer, seed=1, shuffle_buffer=50, skip=10)
    reader = iter(stream)
    taken = [tuple(next(reader)["input_ids"].tolist()) for _ in range(2 * (len(in_order) - 10))]
    epochs = taken[: len(in_order) - 10], taken[len(in_order) - 10 :]
    for epoch in epochs:
        assert sorted(epoch) == sorted(in_order[10:])
    assert epochs[0] != epochs[1]
    again = iter(Streamed(texts, packer, seed=1, shuffle_buffer=50, skip=10))
    assert [tuple(next(again)["input_ids"].tolist()) for _ in range(100)] == taken[:100]
