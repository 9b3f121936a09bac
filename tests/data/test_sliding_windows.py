"""Every token of a text is predicted once, from as much before it as its window has."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import quietformer as qf
from quietformer.analysis.evaluate import evaluate
from quietformer.data.sliding_windows import sliding_windows
from quietformer.data.token_labels import IGNORED
from tests.tiny_models import build


@settings(deadline=None)
@given(st.integers(2, 60), st.integers(2, 20), st.integers(1, 20), st.integers(0, 2), st.integers(1, 5))
def test_each_token_is_asked_for_once_and_the_window_shows_what_is_before_it(count, room, stride, ahead, batch_size):
    tokens = [100 + place for place in range(count)]  # a token is its place
    stride = min(stride, room if ahead else room - 1)
    batches = sliding_windows(tokens, length=room + ahead, stride=stride, before=[7] * ahead, batch_size=batch_size)
    asked = []
    for batch in batches:
        for ids, labels in zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True):
            assert len(ids) == len(labels) <= room + ahead
            assert ids[:ahead] == [7] * ahead
            for place, label in enumerate(labels):
                if label != IGNORED:
                    asked.append(label)
                    assert ids[place + 1] == label
                    assert ids[place] == label - 1 or place == ahead - 1
                    context = place + 1 - ahead
                    assert context >= min(label - 100, room - stride)
    assert sorted(asked) == tokens[0 if ahead else 1 :]


def test_perplexity_is_that_of_one_token_after_the_other():
    model = build("llama")
    tokens = torch.randint(0, 99, (23,), generator=torch.Generator().manual_seed(0)).tolist()
    found = evaluate(model, sliding_windows(tokens, length=8, stride=3), "causal")
    total = 0.0
    for place in range(1, len(tokens)):
        # The first window covers 8 tokens; each later one begins 3 further and ends with what is new in it.
        start = 0 if place < 8 else 3 * -(-(place - 7) // 3)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([tokens[start:place]])).logits[0, -1].double()
        total -= float(logits.log_softmax(-1)[tokens[place]])
    assert found.scored == len(tokens) - 1
    assert found.measured["loss"] == pytest.approx(total / (len(tokens) - 1), rel=1e-5)


def test_strides_that_leave_tokens_out_are_refused():
    for stride in (0, 8, 9):
        with pytest.raises(qf.QuietformerError, match=f"a stride of {stride} does not fit windows of 8 tokens"):
            sliding_windows([1, 2, 3], length=8, stride=stride)
    assert sliding_windows([1, 2, 3], length=8, stride=7, before=[5])  # the token before is there in each window
    with pytest.raises(qf.QuietformerError, match="fewer than 2 tokens"):
        sliding_windows([1], length=8, stride=2)
