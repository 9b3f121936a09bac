"""JSON files that are valid or nearly so, written in ways of their own: encodings, repeated keys, numbers past any machine."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

from tests.fuzz import mutations
from tests.fuzz.case import Expected, Subject, damage
from tests.fuzz.subjects import (
    EMBEDDED,
    EXPORTED,
    OURS,
    OURS_CONVERTED,
    PLAIN,
    QUANTIZED,
    SENTENCES,
    SENTENCES_CONVERTED,
    SPEECH,
    VISION,
)


def encoded(text: str, draw: random.Random) -> bytes:
    return text.encode(draw.choice(("utf-8-sig", "utf-16", "utf-16-le", "utf-32", "utf-7", "cp037")), errors="replace")


def other_lines(text: str, draw: random.Random) -> bytes:
    return text.replace("\n", draw.choice(("\r\n", "\r", "\u2028", "\x0b"))).encode()


def repeated_key(text: str, draw: random.Random) -> bytes:
    """The same key once more, with another value: a reader takes the first, the last, or refuses."""
    content = json.loads(text)
    if not isinstance(content, dict) or not content:
        return b"[" + text.encode() + b"," + text.encode() + b"]"
    key = draw.choice(sorted(content))
    added = json.dumps({key: draw.choice(mutations.STRANGE)})[1:-1]
    body = text.strip()[1:-1]
    return ("{" + draw.choice((f"{added},{body}", f"{body},{added}")) + "}").encode()


def number_as(text: str, draw: random.Random) -> bytes:
    """One number written as JSON does not know it, or as no machine holds it."""
    places = [place for place, mark in enumerate(text) if mark.isdigit() and text[place - 1] in " :[,"]
    if not places:
        return b"1e999"
    begin = end = draw.choice(places)
    while end < len(text) and text[end] in "0123456789.eE+-":
        end += 1
    strange = draw.choice(
        ("NaN", "-Infinity", "1e999", "9" * 5000, "0x10", "1_0", "01", "1.", "-0", "1e-400", "+1", "\u0663")
    )
    return (text[:begin] + strange + text[end:]).encode()


def marks(text: str, draw: random.Random) -> bytes:
    """What other dialects of JSON allow."""
    place = draw.randrange(len(text))
    added = draw.choice(
        ("//x\n", "/*x*/", ",", "'", "\0", "\x1f", "\\ud800", "\u202e", "\ufeff", "[" * 3000, '{"a":' * 3000)
    )
    return (text[:place] + added + text[place:]).encode("utf-8", "surrogatepass")


def strange_key(text: str, draw: random.Random) -> bytes:
    content = json.loads(text)
    if isinstance(content, dict):
        name = draw.choice(
            ("", "\0", "\x1b[2J", "\u202eeman", "__proto__", "a" * 10_000, "é", "\ud800", "self", "kwargs", "0")
        )
        content[name] = draw.choice(mutations.STRANGE)
    return json.dumps(content).encode()


def every_value(text: str, draw: random.Random) -> bytes:
    """All values of one type replaced by those of another."""
    kind = draw.choice((int, float, str, bool, list))
    other = draw.choice(mutations.STRANGE)

    def changed(value: object) -> object:
        if type(value) is kind:
            return other
        if isinstance(value, dict):
            return {key: changed(one) for key, one in value.items()}
        return [changed(one) for one in value] if isinstance(value, list) else value

    return json.dumps(changed(json.loads(text))).encode()


WAYS: tuple[Callable[[str, random.Random], bytes], ...] = (
    encoded, other_lines, repeated_key, number_as, marks, strange_key, every_value,
)  # fmt: skip


def rewritten(path: Path, draw: random.Random) -> None:
    path.write_bytes(draw.choice(WAYS)(path.read_text(encoding="utf-8"), draw))


def register(subject: Subject, folder: str) -> None:
    @damage(subject, "a JSON file written otherwise", Expected.ANY)
    def _rewritten(place: Path, draw: random.Random) -> None:
        rewritten(draw.choice(sorted((place / folder).rglob("*.json"))), draw)


for _subject, _folder in (
    (PLAIN, "plain"), (OURS, "ours"), (OURS_CONVERTED, "ours"), (QUANTIZED, "quantized"), (VISION, "vision"), (SPEECH, "speech"),
    (SENTENCES, "sentences"), (SENTENCES_CONVERTED, "sentences"), (EXPORTED, "exported"), (EMBEDDED, "exported"),
):  # fmt: skip
    register(_subject, _folder)
