"""Damaged GGUF files: bytes, the header, and the lengths that it announces."""

from __future__ import annotations

import random
import struct
from pathlib import Path

from tests.fuzz import mutations
from tests.fuzz.case import Expected, damage
from tests.fuzz.model_folders import no_file
from tests.fuzz.subjects import GGUF

REFUSED, ANY = Expected.REFUSED, Expected.ANY

HEADER = 600
"""Bytes with the numbers of the model; names of tokens come after them."""


@damage(GGUF, "bytes", ANY)
def _bytes(place: Path, draw: random.Random) -> None:
    mutations.damage_bytes(place / "tiny.gguf", draw)


@damage(GGUF, "bytes of the header", ANY)
def _header(place: Path, draw: random.Random) -> None:
    data = (place / "tiny.gguf").read_bytes()
    changed = draw.choice((mutations.flip, mutations.overwrite, mutations.insert))(data[:HEADER], draw)
    (place / "tiny.gguf").write_bytes(changed + data[HEADER:])


@damage(GGUF, "a number of the header", ANY)
def _number(place: Path, draw: random.Random) -> None:
    """Counts, lengths and sizes past the file or past the memory."""
    data = bytearray((place / "tiny.gguf").read_bytes())
    kind = draw.choice(("<I", "<Q"))
    at = draw.randrange(0, HEADER, 4)
    struct.pack_into(kind, data, at, draw.choice((0, 1, 2**16, 2**31 - 1, 2**32 - 1)))
    (place / "tiny.gguf").write_bytes(bytes(data))


@damage(GGUF, "cut short", REFUSED)
def _cut(place: Path, draw: random.Random) -> None:
    path = place / "tiny.gguf"
    path.write_bytes(mutations.truncate(path.read_bytes(), draw))


@damage(GGUF, "no file", REFUSED)
def _no_file(place: Path, draw: random.Random) -> None:
    no_file(place / "tiny.gguf", draw)
