"""Every option of every command, as the command line itself lists them, with values that nobody should give."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any

from tests.fuzz.case import Expected, Subject, damage
from tests.fuzz.inputs import usable
from tests.fuzz.subjects import INSPECT, TEXT, copied

EVERY_OPTION = Subject(
    "every option",
    copied("plain", "exported", "text.txt", "recipe.yaml", "study.yaml"),
    lambda place: ["variants"],
    lambda place: None,
)

NUMBERS = (
    "0", "-1", "-0", "1", "1.5", "nan", "inf", "-inf", "1e308", "-1e308", "1e-320", "1e400", "9" * 30, "-" + "9" * 30, "\uff11",
    "\u0663", "0x10", "1_000", "1e3", " 1 ", "+1", "\u221e", "1,5", "--1", "0.0", "-1e-9", "2147483648", "9223372036854775808",
)  # fmt: skip

WORDS = (
    "", " ", "\n", "\t", "x" * 100_000, "\u202e", "\x1b[31mred", "%s%n", "{}", "{0.__class__}", "*", "?", "[", "a,b", ",", ",,",
    "=", "a=", "=b", "a=b=c", "-", "--", "-x", "None", "null", "true", "\x7f", "\udcff", "'", '"', "$(true)",
    "a" * 5000 + "=1", "w8a8",
    "linear", "mse", "percentile(q=nan)", "percentile(q=101)", "percentile(q=-1)", "mse(steps=0)", "mse(steps=1000000000)",
    "clipped_softmax(alpha=1e308)", "clipped_softmax(alpha=nan)", "linear(pi_init=0)", "linear(pi_init=1)", "mlp(hidden=0)",
    "mlp(hidden=1000000000)", "*=16", "*=1", "*=0", "[=8", "cosine=nan", "cosine=inf", "top1=0.5", "x=0.5", "cosine=",
    "1x", "x1", "0x0", "1x999999", "1x8,1x8", "w2a2", "w16a16", "w8", "W8A8", "w8a8,w8a8", "training.steps=0",
    "training.steps=nan",
)  # fmt: skip

PLACES = (
    "text.txt", "plain", "exported", "recipe.yaml", ".", "..", "no/such", "/dev/null", "/proc/self/mem", "a" * 300,
    "plain/config.json",
    "text.txt/x", "~", "~nobody/x", "file:///etc/passwd", "http://localhost:1/x", "hf://x", "\x00x",
)  # fmt: skip

FEW = [*TEXT[:-1], "--calibration", "1"]

GIVEN = {
    "inspect": ["plain", *TEXT, *INSPECT],
    "quantize": ["plain", *FEW, "--seeds", "1", *INSPECT],
    "export": ["plain", "out", *FEW, "--no-search", "--no-timed", "--runtime", "onnxruntime"],
    "bench": ["exported", "--shapes", "1x8", "--seconds", "0.01", "--no-memory", "--threads", "1"],
    "convert": ["plain", "out", "--gate", "linear"],
    "train": ["recipe.yaml", "--plan", "--no-measure"],
    "retrofit": ["plain", "out", *TEXT[:4], "--sequences", "8", "--seeds", "1", "--steps", "1", "--no-real"],
    "compare": ["recipe.yaml", "--out", "compared"],
    "sweep": ["study.yaml", "--out", "swept-here"],
}  # fmt: skip
"""What makes each command quick; given twice, an option has its last value."""

SLOW = ("--baselines", "--sensitivity", "--search", "--ray", "--push", "--memory", "--timed", "--jobs")
"""Options that are valid and would take long, or start other processes."""


@functools.cache
def options() -> dict[str, list[tuple[str, bool]]]:
    """Of each command its options, and whether they are switches."""
    import typer

    from quietformer.cli.main import app

    commands: Any = typer.main.get_command(app)
    return {
        name: [
            (flag, bool(one.is_flag))
            for one in command.params
            for flag in (*one.opts, *one.secondary_opts)
            if flag.startswith("--") and flag not in SLOW
        ]
        for name, command in commands.commands.items()
    }


def value(draw: random.Random) -> str:
    return usable(draw.choice(draw.choice((NUMBERS, WORDS, PLACES))))


def given(command: str, draw: random.Random) -> list[str]:
    flags = options()[command]
    words: list[str] = []
    for flag, switch in draw.sample(flags, min(len(flags), draw.choice((1, 1, 1, 2, 3)))):
        words += [flag] if switch else draw.choice(([flag, value(draw)], [f"{flag}={value(draw)}"]))
    return words


@damage(EVERY_OPTION, "values", Expected.ANY)
def _values(place: Path, draw: random.Random) -> list[str]:
    command = draw.choice(sorted(options()))
    return [command, *GIVEN.get(command, []), *given(command, draw)]


@damage(EVERY_OPTION, "words out of place", Expected.ANY)
def _words(place: Path, draw: random.Random) -> list[str]:
    """Words left out, repeated, moved or added."""
    command = draw.choice(sorted(options()))
    words = [command, *GIVEN.get(command, []), *given(command, draw)]
    for _ in range(draw.choice((1, 2))):
        at = draw.randrange(len(words))
        what = draw.randrange(4)
        if what == 0:
            del words[at]
        elif what == 1:
            words.insert(at, words[draw.randrange(len(words))])
        elif what == 2:
            words[at] = value(draw)
        else:
            words.insert(at, value(draw))
        words = words or [command]
    return words
