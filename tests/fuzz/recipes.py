"""Damaged recipes and studies."""

from __future__ import annotations

import random
from pathlib import Path

import yaml

from tests.fuzz import mutations
from tests.fuzz.case import Expected, Subject, damage
from tests.fuzz.subjects import RECIPE, STARTED, STUDY

REFUSED, ANY = Expected.REFUSED, Expected.ANY


def bomb(draw: random.Random) -> str:
    """Aliases of aliases: a few lines that stand for more values than fit into memory."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for level in range(1, draw.choice((4, 9, 30))):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]")
    return "\n".join(lines) + "\n"


def deep(draw: random.Random) -> str:
    depth = draw.choice((200, 1000, 5000, 100_000))
    return draw.choice((f"about: {'[' * depth}{']' * depth}\n", f"about: {'{a: ' * depth}1{'}' * depth}\n"))


def recursive(draw: random.Random) -> str:
    return draw.choice(
        ("set: &a {b: *a}\n", "variants: &a\n  one: *a\n", "about: &a [*a]\n", "data: &d {train: [*d]}\n")
    )


CODE = (
    "!!python/object/apply:os.system [true]",
    "!!python/name:os.system",
    "!!binary x",
    "!unknown 1",
    "!!set {a, b}",
    "!!omap []",
)

TRAPS = (
    "1:30",
    "0o17",
    "017",
    "0x1F",
    "yes",
    "off",
    "2020-01-01",
    ".nan",
    "-.inf",
    "1_000",
    "~",
    "=",
    "<<",
    "12e03",
    "1e400",
    "9" * 5000,
)


def changed_text(path: Path, draw: random.Random) -> None:
    """One value of the file, replaced by text that YAML reads in a way of its own."""
    lines = path.read_text().splitlines()
    places = [place for place, line in enumerate(lines) if ": " in line]
    place = draw.choice(places)
    lines[place] = lines[place].partition(": ")[0] + ": " + draw.choice(TRAPS + CODE)
    path.write_text("\n".join(lines) + "\n")


def changed_values(path: Path, draw: random.Random) -> None:
    content = yaml.safe_load(path.read_text())
    for _ in range(draw.choice((1, 1, 2))):
        content = mutations.mutated(content, draw)
    path.write_text(yaml.safe_dump(content, allow_unicode=False))


SIZES = (
    ("tokenizer", "vocabulary", (10**7, 10**9, 10**12, 2**63)),
    ("training", "steps", (10**10, 10**15, 2**63, 10**30)),
    ("training", "batch_size", (10**9, 2**63)),
    ("training", "epochs", (1e300, 1e15)),
    ("data", "length", (10**8, 10**12, 2**63)),
    ("data", "hold_out", (10**12, 2**63)),
    ("training", "keep", (10**12, 2**63)),
)

MODEL_SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "ffn_dim",
    "num_attention_heads",
    "word_embed_proj_dim",
    "vocab_size",
)


for _subject, _file in (
    (RECIPE, "recipe.yaml"),
    (STARTED, "recipe.yaml"),
    (STUDY, "study.yaml"),
    (STUDY, "recipe.yaml"),
):
    _title = "" if _file == "recipe.yaml" and _subject is not STUDY else f"{_file}: "

    @damage(_subject, f"{_title}bytes", ANY)
    def _bytes(place: Path, draw: random.Random, file: str = _file) -> None:
        mutations.damage_bytes(place / file, draw)

    @damage(_subject, f"{_title}values", ANY)
    def _values(place: Path, draw: random.Random, file: str = _file) -> None:
        changed_values(place / file, draw)

    @damage(_subject, f"{_title}what YAML reads in its own way", ANY)
    def _traps(place: Path, draw: random.Random, file: str = _file) -> None:
        changed_text(place / file, draw)

    @damage(_subject, f"{_title}bombs, depth and recursion", REFUSED)
    def _bombs(place: Path, draw: random.Random, file: str = _file) -> None:
        text = (place / file).read_text()
        added = draw.choice((bomb, deep, recursive))(draw)
        key = added.partition(":")[0]
        kept = yaml.safe_load(text)
        kept.pop(key, None)
        (place / file).write_text(yaml.safe_dump(kept) + added)

    @damage(_subject, f"{_title}an unknown field", REFUSED)
    def _unknown(place: Path, draw: random.Random, file: str = _file) -> None:
        content = yaml.safe_load((place / file).read_text())
        sections = [
            content,
            *(
                value
                for key, value in content.items()
                if isinstance(value, dict) and key not in ("variants", "set", "grid")
            ),
        ]
        draw.choice(sections)[draw.choice(("unknown", "lenght", "Steps", "", "__init__"))] = draw.choice((1, "x", None))
        (place / file).write_text(yaml.safe_dump(content))


for _subject in (RECIPE, STARTED):

    @damage(_subject, "sizes past any machine", ANY)
    def _sizes(place: Path, draw: random.Random) -> None:
        path = place / "recipe.yaml"
        content = yaml.safe_load(path.read_text())
        section, field, values = draw.choice(SIZES)
        content[section][field] = draw.choice(values)
        if field == "epochs":
            del content[section]["steps"]
        path.write_text(yaml.safe_dump(content))

    @damage(_subject, "sizes of the model past any machine", REFUSED)
    def _model_sizes(place: Path, draw: random.Random, subject: Subject = _subject) -> None:
        path = place / "recipe.yaml"
        content = yaml.safe_load(path.read_text())
        # A plan may be of a model that only other machines can train.
        large = (10**10, 2**63, 10**40) if subject is RECIPE else (10**8, 10**10, 2**63, 10**40)
        name = draw.choice(MODEL_SIZES)
        none = () if name == "word_embed_proj_dim" else (None,)  # OPT then takes the hidden size
        content["model"]["config"][name] = draw.choice((*large, -1, 0, 1.5, "8", *none))
        path.write_text(yaml.safe_dump(content))

    @damage(_subject, "a task that does not fit", REFUSED)
    def _task(place: Path, draw: random.Random) -> None:
        path = place / "recipe.yaml"
        content = yaml.safe_load(path.read_text())
        content["task"] = draw.choice(("masked", "pairs", "images", "distill", "", None, 3))
        path.write_text(yaml.safe_dump(content))


@damage(STUDY, "more runs than can be", REFUSED)
def _grid(place: Path, draw: random.Random) -> None:
    path = place / "study.yaml"
    content = yaml.safe_load(path.read_text())
    many = draw.choice((
        {"grid": {f"training.{field}": list(range(1, 60)) for field in ("steps", "keep", "log_every", "save_every", "patience")}},
        {"seeds": list(range(20_000))},
        {"measures": {"calibrations": 10**9}},
        {"measures": {"sequences": 2**63}},
    ))  # fmt: skip
    path.write_text(yaml.safe_dump(content | many))
