"""Tensors of other types, sizes and places in a safetensors file, which its library would never write."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

import numpy as np

from tests.fuzz import mutations
from tests.fuzz.case import Expected, Subject, damage
from tests.fuzz.model_folders import weights
from tests.fuzz.mutations import Header, tensor_names
from tests.fuzz.subjects import OURS, OURS_CONVERTED, PLAIN, PLAIN_CONVERTED, QUANTIZED, SHARDED

REFUSED, SAME, ANY = Expected.REFUSED, Expected.SAME, Expected.ANY

WIDTHS = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "F4": 1, "C64": 8, "I64": 8, "I32": 4,
    "I8": 1, "U8": 1, "BOOL": 1, "X": 4, "": 4, "f32": 4,
}  # fmt: skip


def retyped(header: Header, data: bytes, draw: random.Random) -> tuple[Header, bytes]:
    """Some tensors or all of them in another type, each with as many bytes as its shape asks for."""
    kind = draw.choice(sorted(WIDTHS))
    names = tensor_names(header)
    chosen = set(draw.choice((names, draw.sample(names, 1))))
    made, parts, place = {}, [], 0
    for name in names:
        entry, begin, end = header[name], *header[name]["data_offsets"]
        part = data[begin:end]
        if name in chosen and entry["dtype"] == "F32":
            values = np.frombuffer(part, "<f4")
            part = as_kind(values, kind)
            entry = {**entry, "dtype": kind}
        made[name] = {**entry, "data_offsets": [place, place + len(part)]}
        parts.append(part)
        place += len(part)
    return made, b"".join(parts)


def as_kind(values: np.ndarray, kind: str) -> bytes:
    numpy = {"F64": "<f8", "F16": "<f2", "C64": "<c8", "I64": "<i8", "I32": "<i4"}
    if kind in numpy:
        return values.astype(numpy[kind]).tobytes()
    if kind == "BF16":
        return (values.view("<u4") >> 16).astype("<u2").tobytes()
    return b"\x38" * (len(values) * WIDTHS[kind])  # a small number in either kind of float8


def offsets(header: Header, data: bytes, draw: random.Random) -> tuple[Header, bytes]:
    """Tensors that share bytes, leave some out, or lie past the end."""
    entry = header[draw.choice(tensor_names(header))]
    begin, end = entry["data_offsets"]
    shift = draw.choice((-4, 4, -begin, len(data), 2**40, 2**63, 2**64))
    entry["data_offsets"] = draw.choice(
        ([begin + shift, end + shift], [end, begin], [begin, end + shift], [begin], [begin, end, end])
    )
    return header, draw.choice((data, data + b"\0" * 64, b"\0" * 64 + data))


def empty(header: Header, data: bytes, draw: random.Random) -> tuple[Header, bytes]:
    """A tensor without numbers in it."""
    entry = header[draw.choice(tensor_names(header))]
    entry["shape"] = draw.choice(([0], [0, 8], [8, 0], [0, 0, 0]))
    entry["data_offsets"] = [len(data), len(data)]
    return header, data


def metadata(header: Header, data: bytes, draw: random.Random) -> tuple[Header, bytes]:
    header["__metadata__"] = draw.choice((*mutations.STRANGE, {"format": "tf"}, {"format": "\0"}, {"format": ["pt"]}))
    return header, data


def entries(header: Header, data: bytes, draw: random.Random) -> tuple[Header, bytes]:
    """Strange values in what is said of a tensor."""
    entry = header[draw.choice(tensor_names(header))]
    entry[draw.choice(("dtype", "shape", "data_offsets", "more"))] = draw.choice(mutations.STRANGE)
    return header, data


def repeated(path: Path, draw: random.Random) -> None:
    """A name that stands twice in the header."""
    header, data = mutations.read_tensors(path)
    one, two = draw.choices(tensor_names(header), k=2)
    text = json.dumps(header)
    text = text[:-1] + ", " + json.dumps({one: header[two]})[1:]
    path.write_bytes(struct.pack("<Q", len(text.encode())) + text.encode() + data)


def long_header(path: Path, draw: random.Random) -> None:
    """The length of the header, past the file or past the memory."""
    data = path.read_bytes()
    path.write_bytes(struct.pack("<Q", draw.choice((0, 1, 2**27, 2**32, 2**63, 2**64 - 1))) + data[8:])


def names(path: Path, draw: random.Random) -> None:
    """Far more tensors than any model has, or names that no terminal should see."""
    header, data = mutations.read_tensors(path)
    many = draw.choice((1, 20_000))
    for number in range(many):
        mark = draw.choice(("\x1b[2J", "é", "a" * 1000, "\u202e", "..", "/etc/passwd", "x"))
        header[f"{mark}.{number}"] = {"dtype": "F32", "shape": [0], "data_offsets": [len(data), len(data)]}
    mutations.write_tensors(path, header, data)


def register(subject: Subject, name: str) -> None:
    for title, ways in (
        ("tensors of other types", (retyped,)),
        ("tensors in other places of the file", (offsets,)),
        ("empty tensors and strange entries", (empty, metadata, entries)),
    ):

        @damage(subject, title, ANY)
        def _changed(place: Path, draw: random.Random, ways: tuple = ways) -> None:
            path = weights(place / name, draw)
            mutations.write_tensors(path, *draw.choice(ways)(*mutations.read_tensors(path), draw))

    @damage(subject, "repeated, many or strange names of tensors", ANY)
    def _names(place: Path, draw: random.Random) -> None:
        draw.choice((repeated, long_header, names))(weights(place / name, draw), draw)


for _subject, _name in (
    (PLAIN, "plain"), (SHARDED, "sharded"), (OURS, "ours"), (QUANTIZED, "quantized"), (PLAIN_CONVERTED, "plain"),
    (OURS_CONVERTED, "ours"),
):  # fmt: skip
    register(_subject, _name)
