"""Damaged texts, images, recordings and options."""

from __future__ import annotations

import json
import random
import shutil
import struct
from pathlib import Path

import yaml

from tests.fuzz import mutations
from tests.fuzz.case import Expected, damage
from tests.fuzz.model_folders import make_socket, no_file
from tests.fuzz.subjects import INSPECT, OPTIONS, SPEECH, STARTED, TABLES, TEXTS, VISION

REFUSED, SAME, ANY = Expected.REFUSED, Expected.SAME, Expected.ANY


@damage(TEXTS, "bytes", ANY)
def _bytes(place: Path, draw: random.Random) -> None:
    mutations.damage_bytes(place / "text.txt", draw)


@damage(TEXTS, "no text", REFUSED)
def _nothing(place: Path, draw: random.Random) -> None:
    text = draw.choice(
        (
            b"",
            b"\n\n \t",
            b"\xff\xfe" + "text".encode("utf-16-le"),
            b"\0" * 1000 + b"\xff",
            b"PK\x03\x04\xfa",
            b"\x1f\x8b\x08\xe9",
        )
    )
    (place / "text.txt").write_bytes(text)


@damage(TEXTS, "no file", REFUSED)
def _no_file(place: Path, draw: random.Random) -> None:
    no_file(place / "text.txt", draw)


@damage(TEXTS, "long lines", ANY)
def _long(place: Path, draw: random.Random) -> None:
    word = draw.choice(("a", "word ", "é", "😀", "\u0300", "1 ", "\u200b.", "a\u2028b "))
    (place / "text.txt").write_text(word * (draw.choice((10**5, 10**6, 10**7)) // len(word.encode())))


@damage(TEXTS, "strange characters", ANY)
def _characters(place: Path, draw: random.Random) -> None:
    characters = "\0\x07\x1b[31m\ufeff\u202e\u2028\U0001f600é漢\ud7ff<script>|[MASK][SEP][PAD]`*_\r\t"
    (place / "text.txt").write_text("\n".join("".join(draw.choices(characters, k=200)) for _ in range(20)))


@damage(STARTED, "strange training text", ANY)
def _training_text(place: Path, draw: random.Random) -> None:
    draw.choice((_bytes, _nothing, _no_file, _characters))(place, draw)


@damage(TABLES, "bytes", ANY)
def _table_bytes(place: Path, draw: random.Random) -> None:
    mutations.damage_bytes(train_on(place, draw.choice(TABLE_FILES)), draw)


@damage(TABLES, "what a row holds", ANY)
def _table_rows(place: Path, draw: random.Random) -> None:
    path = train_on(place, draw.choice(TABLE_FILES[:2]))
    rows = path.read_text().splitlines()
    strange = (
        '{"text": null}',
        '{"text": [1]}',
        '{"text": {"a": 1}}',
        '{"no": 1}',
        "{",
        '"',
        ",,,,",
        "\x00",
        '{"text": 1}',
        "1e400",
    )
    for _ in range(draw.choice((1, 1, len(rows)))):
        rows[draw.randrange(len(rows))] = draw.choice(strange)
    path.write_text("\n".join(rows))


@damage(TABLES, "no file", REFUSED)
def _table_no_file(place: Path, draw: random.Random) -> None:
    no_file(train_on(place, draw.choice(TABLE_FILES)), draw)


TABLE_FILES = ("table.csv", "table.jsonl", "table.parquet")


def train_on(place: Path, name: str) -> Path:
    """Change the recipe to train on another file."""
    recipe = yaml.safe_load((place / "recipe.yaml").read_text())
    recipe["data"]["train"] = [{"path": name}]
    (place / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return place / name


def an_image(place: Path, draw: random.Random) -> Path:
    return draw.choice(sorted(path for path in (place / "images").rglob("*") if path.is_file()))


@damage(VISION, "bytes", ANY)
def _image_bytes(place: Path, draw: random.Random) -> None:
    mutations.damage_bytes(an_image(place, draw), draw)


@damage(VISION, "no file", ANY)
def _image_no_file(place: Path, draw: random.Random) -> None:
    no_file(an_image(place, draw), draw)


@damage(VISION, "sizes in the header", ANY)
def _image_size(place: Path, draw: random.Random) -> None:
    path = place / "images" / "a" / "one.png"
    data = bytearray(path.read_bytes())
    data[16:24] = struct.pack(">II", *(draw.choice((0, 1, 10**4, 10**5, 2**31 - 1)) for _ in range(2)))
    import zlib

    data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
    path.write_bytes(bytes(data))


@damage(VISION, "a folder in itself", ANY)
def _image_loop(place: Path, draw: random.Random) -> None:
    (place / "images" / "a" / "loop").symlink_to(draw.choice(("..", ".", "loop", "../../images")))


@damage(VISION, "no images", REFUSED)
def _no_images(place: Path, draw: random.Random) -> None:
    shutil.rmtree(place / "images")
    what = draw.randrange(4)
    if what == 0:
        (place / "images").mkdir()
    elif what == 1:
        (place / "images").write_text("x")
    elif what == 2:
        make_socket(place / "images")
    else:
        (place / "images").symlink_to("images")


@damage(VISION, "an image processor", ANY)
def _processor(place: Path, draw: random.Random) -> None:
    fields = {
        "image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 16}, "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "do_normalize": True,
    }  # fmt: skip
    path = place / "vision" / "preprocessor_config.json"
    path.write_text(json.dumps(fields))
    draw.choice((mutations.damage_json, mutations.damage_bytes))(path, draw)


def a_recording(place: Path, draw: random.Random) -> Path:
    return draw.choice(sorted((place / "audio").glob("*.wav")))


@damage(SPEECH, "bytes", ANY)
def _audio_bytes(place: Path, draw: random.Random) -> None:
    mutations.damage_bytes(a_recording(place, draw), draw)


@damage(SPEECH, "header", ANY)
def _audio_header(place: Path, draw: random.Random) -> None:
    path = a_recording(place, draw)
    data = path.read_bytes()
    path.write_bytes(draw.choice((mutations.flip, mutations.overwrite))(data[:44], draw) + data[44:])


@damage(SPEECH, "no file", ANY)
def _audio_no_file(place: Path, draw: random.Random) -> None:
    no_file(a_recording(place, draw), draw)


@damage(SPEECH, "a feature extractor", ANY)
def _extractor(place: Path, draw: random.Random) -> None:
    path = place / "speech" / "preprocessor_config.json"
    draw.choice((mutations.damage_json, mutations.damage_bytes))(path, draw)


VALUES = (
    "", " ", "-1", "0", "1", "nan", "inf", "1e400", "99999999999999999999", "x", "\0x", "../..", "/dev/zero", ".", "plain",
    "text.txt", "é", "--", "[]", "{}", "clipped_softmax(", "clipped_softmax(gamma=nan)", "linear(" * 50, "linear(pi_init=2)",
    "softmax1()", "cosine=2", "a=b=c", "=", "training.steps=1:30", "attention={{{", "x" * 10_000, "None", "True", "%s%n", "w8a8",
    "w0a99", "\ud800", "__import__('os')", "a" * 300,
)  # fmt: skip

DATA = ("--texts", "--dataset", "--images", "--audio", "--length", "--batch-size", "--sequences")

BITS = ("--bits", "--placement", "--granularity", "--weights", "--acts", "--keep", "--calibration", "--eval-texts")

COMMANDS = {
    "inspect": (["plain"], (*DATA, "--seed", "--page", "--json", "--figures", "--card")),
    "convert": (["plain", "out"], ("--attention", "--gate", "--seed", "--patch-norm")),
    "quantize": (["plain", "--plan"], (*DATA, *BITS, "--seeds", "--out")),
    "train": (["recipe.yaml", "--plan", "--no-measure"], ("--set", "--variant", "--devices")),
    "recipes": ([], ("--variant", "--set")),
    "variants": ([], ()),
    "sweep": (["study.yaml"], ("--jobs", "--out")),
    "compare": (["recipe.yaml"], ("--variants", "--seeds", "--bits", "--set", "--out", "--jobs")),
    "paper": ([], ("--item", "--out")),
    "retrofit": (["plain", "out"], ("--steps", *DATA, "--learning-rate", "--placement", "--gate", "--site", "--set")),
    "export": (["plain", "out"], (*DATA, *BITS, "--min-quality", "--runtime", "--threads", "--search-seconds", "--weight-type")),
}  # fmt: skip
"""What is given in any case, and options that take a value; all also take these two."""

SMALL = {
    "inspect": ["--texts", "text.txt", "--length", "16", "--sequences", "2", *INSPECT],
    "retrofit": [
        "--texts",
        "text.txt",
        "--length",
        "16",
        "--sequences",
        "8",
        "--seeds",
        "1",
        "--steps",
        "1",
        "--no-real",
    ],
    "export": ["--texts", "text.txt", "--length", "16", "--sequences", "4", "--no-search", "--no-timed"],
}
"""So that what is accepted does not take long; given twice, an option has its last value."""

ALWAYS = ("--json", "--unknown")


@damage(OPTIONS, "values", ANY)
def _option(place: Path, draw: random.Random) -> list[str]:
    command = draw.choice(sorted(COMMANDS))
    fixed, flags = COMMANDS[command]
    words = draw.sample((*flags, *ALWAYS), draw.choice((1, 1, 2)))
    given = [part for flag in words for part in (flag, usable(draw.choice(VALUES)))]
    return [command, *fixed, *SMALL.get(command, []), *given]


@damage(OPTIONS, "a model that is none", ANY)
def _model(place: Path, draw: random.Random) -> list[str]:
    return [
        draw.choice(("inspect", "quantize")),
        usable(draw.choice([v for v in VALUES if v != "plain"])),
        "--texts",
        "text.txt",
    ]


FIELDS = (
    "training.steps", "seed", "model.config.hidden_size", "data", "attention.normalizer", "attention.gate", "trainer.fsdp",
    "x.y.z", "", ".", "variants", "name",
)  # fmt: skip


@damage(OPTIONS, "changes to a recipe", ANY)
def _set(place: Path, draw: random.Random) -> list[str]:
    field = draw.choice(FIELDS)
    return ["train", "recipe.yaml", "--plan", "--no-measure", "--set", usable(f"{field}={draw.choice(VALUES)}")]


def usable(value: str) -> str:
    """What a shell can pass on."""
    return value.replace("\0", "").replace("\ud800", "\udcff")
