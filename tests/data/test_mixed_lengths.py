"""Text of several lengths: nothing is invented, nothing but a remainder is lost, and every piece is a whole sequence."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from quietformer.data.mixed_lengths import SHARES, mixed_lengths

FIRST, LAST = 1, 2


def sequences(rows, length, *, before, after, start=10):
    text = torch.arange(start, start + rows * (length - len(before) - len(after))).view(rows, -1)
    first, last = (torch.tensor(tokens, dtype=text.dtype).expand(rows, -1) for tokens in (before, after))
    ids = torch.cat([first, text, last], 1)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}


@given(
    rows=st.integers(1, 5),
    length=st.integers(16, 130),
    before=st.sampled_from([[], [FIRST]]),
    after=st.sampled_from([[], [LAST]]),
)
def test_pieces_are_the_same_text_in_order(rows, length, before, after):
    batches = [sequences(rows, length, before=before, after=after, start=10_000 * place + 10) for place in range(6)]
    for place, (batch, made) in enumerate(zip(batches, mixed_lengths(batches, before, after), strict=True)):
        ids = made["input_ids"]
        assert all(tensor.shape == ids.shape for tensor in made.values())
        assert bool(made["attention_mask"].all())
        assert ids[:, : len(before)].tolist() == [before] * len(ids)
        assert ids[:, ids.shape[1] - len(after) :].tolist() == [after] * len(ids)
        text = [token for token in batch["input_ids"].flatten().tolist() if token >= 10]
        kept = [token for token in ids.flatten().tolist() if token >= 10]
        assert kept == text[: len(kept)]
        assert len(text) - len(kept) < ids.shape[1]
        if length // SHARES[place % len(SHARES)] >= 8:
            assert ids.shape[1] == length // SHARES[place % len(SHARES)]


def test_padded_batches_and_other_inputs_are_left_alone():
    padded = sequences(2, 32, before=[], after=[])
    padded["attention_mask"][1, 20:] = 0
    pixels = {"pixel_values": torch.zeros(2, 3, 8, 8)}
    extra = sequences(2, 32, before=[], after=[]) | {"bbox": torch.zeros(2, 32, 4)}
    for batch in (padded, pixels, extra):
        made = mixed_lengths([batch] * 4, [], [])
        assert all(one is batch for one in made)
