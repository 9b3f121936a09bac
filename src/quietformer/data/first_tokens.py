"""What a decoder is told before it writes: its first tokens, those it may not write, and those that end a text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from quietformer.config.spec_base import JsonObject
from quietformer.errors import QuietformerError

TASK = "transcribe"
"""What Whisper is asked to do, rather than to translate."""


@dataclass(frozen=True)
class FirstTokens:
    """What a decoder begins with, and which tokens it may not write."""

    prompt: tuple[int, ...]
    ends: frozenset[int]
    never: tuple[int, ...] = ()
    never_first: tuple[int, ...] = ()
    room: int | None = None
    """Positions after the prompt."""
    languages: tuple[int, ...] = ()
    """Tokens of languages; the most likely one after the first token of the prompt takes the place of the second."""
    padding: int = 0

    def longest(self, wanted: int) -> int:
        """How many tokens may be written, of so many wanted."""
        return wanted if self.room is None else min(wanted, self.room)


def first_tokens(configs: JsonObject, vocabulary: int, language: str | None = None) -> FirstTokens:
    """From generation_config.json over config.json: where a decoder starts, and Whisper's language and task."""
    told: dict[str, Any] = dict(configs)
    start = told.get("decoder_start_token_id", told.get("bos_token_id"))
    if not isinstance(start, int):
        raise QuietformerError(
            "generation_config.json names no decoder_start_token_id, so nobody knows how the decoder begins; add it"
        )
    ends = frozenset(_integers(told.get("eos_token_id")))
    prompt, languages = _prompt(told, start, language)
    banned = [row[0] for row in told.get("bad_words_ids") or [] if len(row) == 1 and row[0] not in ends]
    never = [*_integers(told.get("suppress_tokens")), *banned]
    positions = told.get("max_target_positions") or told.get("max_position_embeddings")
    padding = told.get("pad_token_id")
    return FirstTokens(
        prompt=prompt,
        ends=ends,
        never=_known(never, vocabulary),
        never_first=_known(_integers(told.get("begin_suppress_tokens")), vocabulary),
        room=positions - len(prompt) if isinstance(positions, int) else None,
        languages=languages,
        padding=padding if isinstance(padding, int) else start,
    )


def _prompt(told: Mapping[str, Any], start: int, language: str | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens, and those of which the second is to be found out."""
    forced = told.get("forced_bos_token_id")
    rest = _integers(told.get("no_timestamps_token_id")) or _integers(forced)
    names: Mapping[str, int] = told.get("lang_to_id") or {}
    if not told.get("is_multilingual") or not names:
        if language is not None:
            raise QuietformerError(
                f"the model knows one language, so it cannot be told {language!r}; leave out language"
            )
        return (start, *rest), ()
    task = (told.get("task_to_id") or {}).get(TASK)
    rest = [*_integers(task), *rest]
    if language is None:
        return (start, next(iter(names.values())), *rest), tuple(names.values())
    token = names.get(f"<|{language.strip('<|>')}|>")
    if token is None:
        known = ", ".join(sorted(name.strip("<|>") for name in names))
        raise QuietformerError(f"unknown language {language!r}; the model knows {known}")
    return (start, token, *rest), ()


def _integers(told: object) -> list[int]:
    """One number or several; none for anything else."""
    found: Iterable[object] = told if isinstance(told, list | tuple) else [told]
    return [one for one in found if isinstance(one, int) and not isinstance(one, bool) and one >= 0]


def _known(tokens: list[int], vocabulary: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys(token for token in tokens if token < vocabulary))
