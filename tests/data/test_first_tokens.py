"""What a decoder is told before it writes, from the configs of several families."""

from __future__ import annotations

import pytest

from quietformer.data.first_tokens import first_tokens
from quietformer.errors import QuietformerError

WHISPER = {
    "decoder_start_token_id": 50, "eos_token_id": 49, "is_multilingual": True, "no_timestamps_token_id": 63,
    "lang_to_id": {"<|en|>": 51, "<|de|>": 52}, "task_to_id": {"transcribe": 59, "translate": 58}, "max_target_positions": 20,
    "suppress_tokens": [1, 2, -1, 99], "begin_suppress_tokens": [3, 49], "pad_token_id": 48,
}  # fmt: skip


def test_whisper_is_told_the_language_the_task_and_that_there_are_no_times():
    told = first_tokens(WHISPER, 64, "de")
    assert told.prompt == (50, 52, 59, 63)
    assert (told.languages, told.room, told.padding) == ((), 16, 48)
    assert (told.never, told.never_first, told.ends) == ((1, 2), (3, 49), {49})
    found_out = first_tokens(WHISPER, 64)
    assert (found_out.prompt[0], found_out.prompt[2:], found_out.languages) == (50, (59, 63), (51, 52))
    assert first_tokens(WHISPER | {"is_multilingual": False}, 64).prompt == (50, 63)


def test_a_forced_first_token_belongs_to_the_prompt_and_single_bad_words_are_never_written():
    told = first_tokens(
        {
            "decoder_start_token_id": 2,
            "eos_token_id": [2, 5],
            "forced_bos_token_id": 0,
            "bad_words_ids": [[7], [8, 9], [2]],
        },
        64,
    )
    assert (told.prompt, told.never, told.room, told.ends) == ((2, 0), (7,), None, {2, 5})
    assert told.longest(5) == 5


@pytest.mark.parametrize(
    ("told", "language", "message"),
    [
        ({}, None, "names no decoder_start_token_id"),
        (WHISPER, "xx", "unknown language 'xx'; the model knows de, en"),
        ({"decoder_start_token_id": 1}, "en", "the model knows one language"),
    ],
)
def test_mistakes_are_one_line(told, language, message):
    with pytest.raises(QuietformerError, match=message) as refused:
        first_tokens(told, 64, language)
    assert "\n" not in str(refused.value)
