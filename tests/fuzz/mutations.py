"""Damage that any file can have: bytes, JSON, and the tensors of a safetensors file."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# ---- bytes


def truncate(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data))]


def flip(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8))):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def overwrite(data: bytes, draw: random.Random) -> bytes:
    start = draw.randrange(len(data))
    count = min(len(data) - start, draw.choice((1, 4, 64)))
    return data[:start] + draw.randbytes(count) + data[start + count :]


def insert(data: bytes, draw: random.Random) -> bytes:
    start = draw.randrange(len(data))
    return data[:start] + draw.choice((b"\0", b"\xff\xfe", b"\r\n", b"[" * 5000, draw.randbytes(16))) + data[start:]


def append(data: bytes, draw: random.Random) -> bytes:
    return data + draw.choice((b"\0", b"garbage", b"{}", draw.randbytes(100)))


def zeros(data: bytes, draw: random.Random) -> bytes:
    return b"\0" * draw.choice((1, 8, len(data)))


def other(data: bytes, draw: random.Random) -> bytes:
    return draw.choice(
        (b"", b"\n", b"null", b"[]", b"{}", b"0", b'"text"', b"\xff\xfe\x00", b"PK\x03\x04", b"\x80\x02.")
    )


BYTES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    truncate, flip, overwrite, insert, append, zeros, other,
)  # fmt: skip


def damage_bytes(path: Path, draw: random.Random, kinds: tuple[Callable[..., bytes], ...] = BYTES) -> None:
    data = path.read_bytes()
    path.write_bytes(draw.choice(kinds)(data, draw) if data else other(data, draw))


# ---- JSON

STRANGE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 2**31, 2**63, 2**70, 10**400, -(2**40), 0.5, 1e308, -1e-300, float("nan"),
    float("inf"), "", "x", "\0", "\ud800", "../../etc/passwd", "/dev/zero", "é" * 300, [], [[]], {}, {"a": 1}, [1, 2, 3], "12",
    "nan", ["x"], {"": None},
)  # fmt: skip


def places(content: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value in nested dicts and lists."""
    if way:
        yield way
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield from places(value, (*way, key))


def holder(content: Any, way: tuple[Any, ...]) -> Any:
    for key in way[:-1]:
        content = content[key]
    return content


def mutated(content: Any, draw: random.Random, *, deep: bool = True) -> Any:
    """The content with one value replaced, removed, added, nested, repeated or swapped with another."""
    content = copy.deepcopy(content)
    ways = list(places(content))
    if not ways:
        return draw.choice(STRANGE)
    if deep and draw.random() < 0.5:  # values near the top decide about more
        ways = [way for way in ways if len(way) <= 2]
    way = draw.choice(ways)
    where, key = holder(content, way), way[-1]
    what = draw.randrange(8)
    if what == 0:
        del where[key]
    elif what == 1 and isinstance(where, dict):
        where[draw.choice(("unknown", "", "auto_map", "__class__", "kind", "version"))] = draw.choice(STRANGE)
    elif what == 2:
        where[key] = [where[key]]
    elif what == 3:
        where[key] = {"value": where[key]}
    elif what == 4 and isinstance(where[key], (int, float)) and not isinstance(where[key], bool):
        where[key] = draw.choice((-where[key], where[key] * 10**6, where[key] + 0.5, str(where[key]), where[key] + 1))
    elif what == 5:
        elsewhere = draw.choice(ways)
        where[key] = copy.deepcopy(holder(content, elsewhere)[elsewhere[-1]])
    else:
        where[key] = draw.choice(STRANGE)
    return content


def damage_json(path: Path, draw: random.Random) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    for _ in range(draw.choice((1, 1, 1, 3))):
        content = mutated(content, draw)
    path.write_text(json.dumps(content), encoding="utf-8")


# ---- safetensors, read and written by hand so that what the library refuses to write can be written

Header = dict[str, Any]


def read_tensors(path: Path) -> tuple[Header, bytes]:
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def write_tensors(path: Path, header: Header, data: bytes) -> None:
    written = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(written)) + written + data)


def header_size(path: Path) -> int:
    return 8 + int(struct.unpack("<Q", path.read_bytes()[:8])[0])


def tensor_names(header: Header) -> list[str]:
    return [name for name in header if name != "__metadata__"]


def without_end(path: Path, draw: random.Random) -> None:
    """A tensor that is shorter than it says, in a file that is whole."""
    header, data = read_tensors(path)
    name = draw.choice([n for n in tensor_names(header) if len(header[n]["shape"]) and header[n]["shape"][0] > 1])
    entry = header[name]
    begin, end = entry["data_offsets"]
    kept = draw.randrange(1, entry["shape"][0])
    size = (end - begin) // entry["shape"][0] * kept
    entry["shape"] = [kept, *entry["shape"][1:]]
    entry["data_offsets"] = [begin, begin + size]
    for one in tensor_names(header):
        offsets = header[one]["data_offsets"]
        if offsets[0] >= end:
            header[one]["data_offsets"] = [offsets[0] - (end - begin - size), offsets[1] - (end - begin - size)]
    write_tensors(path, header, data[: begin + size] + data[end:])


def as_type(path: Path, draw: random.Random, kinds: tuple[str, ...] = ("I32", "U32")) -> None:
    """The same bytes under another type of the same size: weights become numbers like 1e9."""
    header, data = read_tensors(path)
    names = [name for name in tensor_names(header) if header[name]["dtype"] == "F32"]
    header[draw.choice(names)]["dtype"] = draw.choice(kinds)
    write_tensors(path, header, data)


def not_finite(path: Path, draw: random.Random) -> None:
    header, data = read_tensors(path)
    names = [
        n
        for n in tensor_names(header)
        if header[n]["dtype"] == "F32" and header[n]["data_offsets"][1] > header[n]["data_offsets"][0]
    ]
    entry = header[draw.choice(names)]
    place = draw.randrange(entry["data_offsets"][0], entry["data_offsets"][1], 4)
    value = struct.pack("<f", draw.choice((float("nan"), float("inf"), float("-inf"))))
    write_tensors(path, header, data[:place] + value + data[place + 4 :])


def other_shape(path: Path, draw: random.Random) -> None:
    header, data = read_tensors(path)
    entry = header[draw.choice(tensor_names(header))]
    shape = entry["shape"]
    entry["shape"] = draw.choice(
        (list(reversed(shape)), [*shape, 1], [1, *shape], shape[1:], [2**62, *shape[1:]], [-1])
    )
    write_tensors(path, header, data)


def renamed(path: Path, draw: random.Random) -> None:
    header, data = read_tensors(path)
    name = draw.choice(tensor_names(header))
    header[draw.choice((f"{name}.x", "", name.upper(), f"x.{name}", "\ud800", name[:-1]))] = header.pop(name)
    write_tensors(path, header, data)


def removed(path: Path, draw: random.Random) -> None:
    """One tensor missing, the others moved together so that the file is whole."""
    header, data = read_tensors(path)
    gone = header.pop(draw.choice(tensor_names(header)))
    begin, end = gone["data_offsets"]
    for name in tensor_names(header):
        offsets = header[name]["data_offsets"]
        if offsets[0] >= end:
            header[name]["data_offsets"] = [offsets[0] - (end - begin), offsets[1] - (end - begin)]
    write_tensors(path, header, data[:begin] + data[end:])


def damaged_header(path: Path, draw: random.Random) -> None:
    """Bytes of the header and of its length."""
    size = header_size(path)
    data = path.read_bytes()
    path.write_bytes(draw.choice((flip, overwrite, insert))(data[:size], draw) + data[size:])
