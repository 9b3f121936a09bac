"""Damaged model folders."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

from tests.fuzz import mutations
from tests.fuzz.case import Expected, Subject, damage
from tests.fuzz.subjects import (
    CAUSAL,
    OURS,
    OURS_CONVERTED,
    PLAIN,
    PLAIN_CONVERTED,
    QUANTIZED,
    SHARDED,
    SPEECH_MODEL,
    VISION_MODEL,
)

REFUSED, SAME, ANY = Expected.REFUSED, Expected.SAME, Expected.ANY


def weights(folder: Path, draw: random.Random) -> Path:
    return draw.choice(sorted(folder.glob("*.safetensors")))


SIZES = {
    "vision": ("hidden_size", "num_hidden_layers", "intermediate_size", "image_size", "patch_size", "num_channels"),
    "speech": ("hidden_size", "num_hidden_layers", "intermediate_size"),
}
"""Fields of a config that decide about shapes, of models that are not of text."""

TEXT_SIZES = ("hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size", "max_position_embeddings")


def register(subject: Subject, name: str) -> None:
    """The damage that every folder with weights is given; `name` is the folder's."""

    @damage(subject, "bytes of config.json", ANY)
    def _config_bytes(place: Path, draw: random.Random) -> None:
        mutations.damage_bytes(place / name / "config.json", draw)

    @damage(subject, "values of config.json", ANY)
    def _config_values(place: Path, draw: random.Random) -> None:
        mutations.damage_json(place / name / "config.json", draw)

    @damage(subject, "sizes in config.json", REFUSED)
    def _config_sizes(place: Path, draw: random.Random) -> None:
        path = place / name / "config.json"
        config = json.loads(path.read_text())
        # Rotary positions are computed for any length.
        key = draw.choice(SIZES.get(name, TEXT_SIZES[:-1] if name == "causal" else TEXT_SIZES))
        config[key] = draw.choice(
            [v for v in (0, -1, 1, 3, 48, 10**6, 10**9, 2**70, 1.5, "8", None, [4]) if v != config[key]]
        )
        path.write_text(json.dumps(config))

    @damage(subject, "header of the weights", SAME)
    def _header(place: Path, draw: random.Random) -> None:
        mutations.damaged_header(weights(place / name, draw), draw)

    @damage(subject, "bytes of the weights", ANY)
    def _bytes(place: Path, draw: random.Random) -> None:
        mutations.damage_bytes(weights(place / name, draw), draw)

    @damage(subject, "weights cut short", REFUSED)
    def _cut(place: Path, draw: random.Random) -> None:
        path = weights(place / name, draw)
        path.write_bytes(mutations.truncate(path.read_bytes(), draw))

    @damage(subject, "integers as weights", REFUSED)
    def _integers(place: Path, draw: random.Random) -> None:
        mutations.as_type(weights(place / name, draw), draw)

    @damage(subject, "weights that are not finite", REFUSED)
    def _not_finite(place: Path, draw: random.Random) -> None:
        mutations.not_finite(weights(place / name, draw), draw)

    @damage(subject, "a shape of the weights", SAME)
    def _shape(place: Path, draw: random.Random) -> None:
        mutations.other_shape(weights(place / name, draw), draw)

    @damage(subject, "a tensor shorter than it should be", REFUSED)
    def _shorter(place: Path, draw: random.Random) -> None:
        mutations.without_end(weights(place / name, draw), draw)

    @damage(subject, "a tensor renamed", SAME)
    def _renamed(place: Path, draw: random.Random) -> None:
        mutations.renamed(weights(place / name, draw), draw)

    @damage(subject, "a tensor removed", SAME)
    def _removed(place: Path, draw: random.Random) -> None:
        mutations.removed(weights(place / name, draw), draw)

    @damage(subject, "a file missing", ANY)
    def _missing(place: Path, draw: random.Random) -> None:
        draw.choice(sorted((place / name).iterdir())).unlink()

    @damage(subject, "a file that is no file", ANY)
    def _no_file(place: Path, draw: random.Random) -> None:
        no_file(draw.choice(sorted((place / name).iterdir())), draw)

    @damage(subject, "a file of another folder", ANY)
    def _swapped(place: Path, draw: random.Random) -> None:
        one, two = draw.sample(sorted((place / name).iterdir()), 2)
        shutil.copyfile(one, two)


def no_file(path: Path, draw: random.Random) -> None:
    """A folder, a loop of links, a pipe, a device, a socket or a link to nothing in its place."""
    path.unlink()
    what = draw.randrange(6)
    if what == 0:
        path.mkdir()
    elif what == 1:
        path.symlink_to(path.name)
    elif what == 2:
        os.mkfifo(path)
    elif what == 3:
        path.symlink_to(draw.choice(("/dev/zero", "/dev/random", "/dev/null")))
    elif what == 4:
        make_socket(path)
    else:
        path.symlink_to("nothing")


def make_socket(path: Path) -> None:
    import socket

    before = os.getcwd()
    os.chdir(path.parent)  # the name of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(before)


for _subject, _name in (
    (PLAIN, "plain"), (SHARDED, "sharded"), (OURS, "ours"), (QUANTIZED, "quantized"), (PLAIN_CONVERTED, "plain"),
    (OURS_CONVERTED, "ours"), (CAUSAL, "causal"), (VISION_MODEL, "vision"), (SPEECH_MODEL, "speech"),
):  # fmt: skip
    register(_subject, _name)

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


@damage(PLAIN, "bytes of the tokenizer", ANY)
def _tokenizer_bytes(place: Path, draw: random.Random) -> None:
    mutations.damage_bytes(place / "plain" / draw.choice(TOKENIZER_FILES), draw)


@damage(PLAIN, "values of the tokenizer", ANY)
def _tokenizer_values(place: Path, draw: random.Random) -> None:
    mutations.damage_json(place / "plain" / draw.choice(TOKENIZER_FILES), draw)


@damage(PLAIN, "parts of the tokenizer", ANY)
def _tokenizer_parts(place: Path, draw: random.Random) -> None:
    path = place / "plain" / "tokenizer.json"
    content = json.loads(path.read_text())
    part = draw.choice(
        ("model", "pre_tokenizer", "normalizer", "post_processor", "decoder", "added_tokens", "truncation", "padding")
    )
    content[part] = mutations.mutated(content[part], draw) if content[part] else draw.choice(mutations.STRANGE)
    path.write_text(json.dumps(content))


@damage(SHARDED, "bytes of the index", SAME)
def _index_bytes(place: Path, draw: random.Random) -> None:
    mutations.damage_bytes(place / "sharded" / "model.safetensors.index.json", draw)


@damage(SHARDED, "values of the index", SAME)
def _index_values(place: Path, draw: random.Random) -> None:
    mutations.damage_json(place / "sharded" / "model.safetensors.index.json", draw)


@damage(SHARDED, "an index that points elsewhere", REFUSED)
def _index_elsewhere(place: Path, draw: random.Random) -> None:
    path = place / "sharded" / "model.safetensors.index.json"
    shutil.copytree(place / "sharded", place / "elsewhere")
    content = json.loads(path.read_text())
    name = draw.choice(sorted(content["weight_map"]))
    file = content["weight_map"][name]
    content["weight_map"][name] = draw.choice(
        (
            f"../elsewhere/{file}",
            str((place / "elsewhere" / file).absolute()),
            f"./../sharded/{file}",
            "/dev/zero",
            "no-such-file",
            "",
        )
    )
    path.write_text(json.dumps(content))


@damage(SHARDED, "a shard in the place of another", REFUSED)
def _shards_swapped(place: Path, draw: random.Random) -> None:
    one, two = draw.sample(sorted((place / "sharded").glob("*.safetensors")), 2)
    shutil.copyfile(one, two)


@damage(OURS, "values of our section", ANY)
def _section(place: Path, draw: random.Random) -> None:
    path = place / "ours" / "config.json"
    config = json.loads(path.read_text())
    section = config["quantization_config"]
    section = mutations.mutated(section, draw)
    # What is another valid attention cannot be told from the right one.
    config["quantization_config"] = section
    path.write_text(json.dumps(config))
