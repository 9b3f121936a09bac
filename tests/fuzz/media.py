"""Recordings and images of every format: what cannot be read is told, and what can is read as what it is."""

from __future__ import annotations

import random
import shutil
import struct
from pathlib import Path

import numpy as np
from PIL import Image

from tests.fuzz.case import Expected, damage
from tests.fuzz.subjects import SPEECH, VISION

ANY = Expected.ANY

PCM, FLOAT, A_LAW, MU_LAW, ADPCM, EXTENSIBLE = 1, 3, 6, 7, 2, 0xFFFE


def chunk(name: bytes, content: bytes, size: int | None = None) -> bytes:
    return name + struct.pack("<I", len(content) if size is None else size) + content + b"\0" * (len(content) % 2)


def recording(draw: random.Random) -> bytes:
    """A wav file of any format, channels, rate and width, with chunks in any order."""
    kind, channels = (
        draw.choice((PCM, PCM, FLOAT, A_LAW, MU_LAW, ADPCM, EXTENSIBLE, 0)),
        draw.choice((0, 1, 2, 8, 65535)),
    )
    rate, bits = draw.choice((0, 1, 8000, 44_100, 2**32 - 1)), draw.choice((0, 1, 8, 12, 16, 24, 32, 64, 65535))
    block = channels * bits // 8
    form = struct.pack("<HHIIHH", kind, channels, rate, (rate * block) % 2**32, block % 2**16, bits)
    if kind == EXTENSIBLE:
        form += struct.pack("<HHI", 22, bits, 0) + struct.pack("<H", draw.choice((PCM, FLOAT))) + b"\0" * 14
    sound = draw.choice((b"", draw.randbytes(8001), b"\0" * 8000, struct.pack("<f", float("nan")) * 4000))
    parts = [
        chunk(b"fmt ", form),
        chunk(b"data", sound, draw.choice((None, None, 0, 1, 2**32 - 1, 2**31))),
        chunk(b"LIST", b"INFO" + draw.randbytes(20)),
        chunk(draw.choice((b"junk", b"\xff\xff\xff\xff", b"fmt ", b"data")), draw.randbytes(16)),
    ]
    parts = draw.choice((parts[:2], parts, parts[::-1], parts[:1], parts[1:2], [*parts[:2], parts[1]]))
    body = b"WAVE" + b"".join(parts)
    begin = draw.choice((b"RIFF", b"RIFF", b"RIFF", b"RIFX", b"RF64", b"FORM"))
    return begin + struct.pack("<I", draw.choice((len(body), len(body), 0, 2**32 - 1))) + body


@damage(SPEECH, "other formats of recordings", ANY)
def _formats(place: Path, draw: random.Random) -> None:
    for path in sorted((place / "audio").glob("*.wav")):
        path.write_bytes(recording(draw))


@damage(SPEECH, "names and transcripts", ANY)
def _names(place: Path, draw: random.Random) -> None:
    path = draw.choice(sorted((place / "audio").glob("*.wav")))
    what = draw.randrange(4)
    if what == 0:
        path.rename(
            path.with_name(draw.choice(("\x1b[31m.wav", "a\nb.wav", "\u202e.wav", ".wav", "é" * 100 + ".wav", "x.WAV")))
        )
    elif what == 1:
        path.with_suffix(".txt").write_bytes(draw.choice((b"", b"\xff\xfe", b"\0", b"a " * 10**6)))
    elif what == 2:
        path.with_suffix(".txt").mkdir()
    else:
        (place / "audio" / "deep.wav").mkdir()
        shutil.copy(path, place / "audio" / "deep.wav" / "inside.wav")


MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "I;16", "RGBX", "La")

FORMATS = ("png", "jpeg", "gif", "bmp", "webp", "tiff", "ppm", "ico")


@damage(VISION, "other formats of images", ANY)
def _image_formats(place: Path, draw: random.Random) -> None:
    """Every mode and size in every format that can hold it, under the name of any other."""
    width, height = draw.choice(((24, 24), (1, 1), (1, 3000), (3000, 1), (2, 40), (400, 300)))
    mode, kind = draw.choice(MODES), draw.choice(FORMATS)
    pixels = np.random.default_rng(draw.randrange(2**32)).integers(0, 255, (height, width, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    try:
        image = image.convert(mode) if mode != "I;16" else Image.fromarray(pixels[..., 0].astype(np.uint16) * 200)
        more = (
            {"save_all": True, "append_images": [image] * 3}
            if kind in ("gif", "tiff", "webp") and draw.random() < 0.5
            else {}
        )
        image.save(place / "made", format=kind, **more)
    except (ValueError, OSError, KeyError):  # a format that does not have the mode
        Image.fromarray(pixels).save(place / "made", format="png")
    goal = draw.choice(sorted(path for path in (place / "images").rglob("*") if path.is_file()))
    (place / "made").rename(goal)


@damage(VISION, "class folders", ANY)
def _classes(place: Path, draw: random.Random) -> None:
    images = place / "images"
    what = draw.randrange(4)
    if what == 0:
        (images / "a").rename(images / draw.choice(("\x1b[31m", "a\nb", "..a", "0", "é", " ", "[x]", "a" * 200)))
    elif what == 1:
        (images / "empty").mkdir()
    elif what == 2:
        for number in range(draw.choice((1, 50))):
            (images / f"{number}").mkdir()
            shutil.copy(images / "a" / "one.png", images / f"{number}" / "x.png")
    else:
        shutil.copy(images / "a" / "one.png", images / "beside.png")
