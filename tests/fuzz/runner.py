"""Cases run one by one, each in a process forked from one that has imported everything, with a limit of time and memory."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import random
import resource
import select
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.conversion_mapping import get_checkpoint_conversion_mapping

import quietformer
from tests.fuzz import (
    every_option,
    exported_folders,
    gguf_files,
    inputs,
    json_text,
    media,
    model_folders,
    places,
    recipes,
    runs,
    sentence_folders,
    tensors,
)
from tests.fuzz.case import EVERY, Damage, Expected, Subject

IMPORTED = (
    "datasets", "matplotlib.pyplot", "onnxruntime", "sklearn.datasets", "transformers.trainer",
    "transformers.models.bert.modeling_bert", "transformers.models.opt.modeling_opt", "transformers.models.vit.modeling_vit",
    "transformers.models.wav2vec2.modeling_wav2vec2", "transformers.models.llama.modeling_llama", "gguf",
    "PIL.BmpImagePlugin", "PIL.GifImagePlugin", "PIL.JpegImagePlugin",
    "PIL.PngImagePlugin", "rich.status", "rich.progress", "rich.table", "typer._click.decorators",
)  # fmt: skip
"""What commands import besides our own modules, so that a forked process need not."""

CLASSES = (
    every_option, exported_folders, gguf_files, inputs, json_text, media, model_folders, places,
    recipes, runs, sentence_folders, tensors,
)  # fmt: skip
"""Imported for what they register."""

SECONDS = 30.0
"""Processor time after which a case counts as a hang."""

PATIENCE = 6
"""Times as much time on the clock, for a case that waits; longer as long as it works, since other processes may be busy."""

WORKING = 0.05
"""Processor seconds in that time by which a case that works differs from one that waits."""

MEMORY = 8 * 2**30
"""Bytes of address space past what the process has already."""

PREFIX = "quietformer: "

UNEXPECTED = "unexpected"
"""What the last handler's line begins with: nobody has recognised the damage."""


GOOD = ("refused", "same", "accepted")
"""How a case may end."""


@dataclass(frozen=True)
class Outcome:
    """How one case ended."""

    damage: str
    seed: int
    kind: str  # refused, same, accepted, or what is wrong: traceback, hang, crash, lines, silent, unexpected, left
    line: str
    seconds: float

    @property
    def bad(self) -> bool:
        return self.kind not in GOOD


class Fuzzer:
    """Runs cases against the originals of one folder."""

    def __init__(self, originals: Path, scratch: Path) -> None:
        self.originals, self.scratch = originals, scratch
        self._right: dict[str, Any] = {}
        ours = [module.name for module in pkgutil.walk_packages(quietformer.__path__, "quietformer.")]
        for name in (*IMPORTED, *(name for name in ours if not name.endswith("__main__"))):
            with contextlib.suppress(ImportError):  # what comes with an extra
                importlib.import_module(name)
        get_checkpoint_conversion_mapping("bert")  # made once a process, a quarter of the time of a case
        every_option.options()
        gc.collect()
        gc.freeze()  # a forked process would copy every object that it looks at

    def right(self, subject: Subject) -> Any:
        """What comes of the undamaged original."""
        if subject.name not in self._right:
            place = self._fresh()
            subject.prepare(self.originals, place)
            code, error, _ = _run(place, lambda: subject.arguments(place), subject)
            if code not in (0, 130):
                raise RuntimeError(f"{subject.name} fails undamaged: {code} {error[-2000:]}")
            self._right[subject.name] = subject.result(place)
            shutil.rmtree(place)
        return self._right[subject.name]

    def run(self, damage: Damage, seed: int) -> Outcome:
        """One case, from its class and its random seed alone."""
        right = self.right(damage.subject)
        place = self._fresh()
        try:
            damage.subject.prepare(self.originals, place)

            def arguments() -> list[str]:
                draw = random.Random(f"{damage.title} {seed}")
                return damage.apply(place, draw) or damage.subject.arguments(place)

            code, error, seconds = _run(place, arguments, damage.subject)
            kind, line = _judged(damage, place, code, error, right)
            return Outcome(damage.title, seed, kind, line, seconds)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _fresh(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.scratch))


def _judged(damage: Damage, place: Path, code: int | None, error: str, right: Any) -> tuple[str, str]:
    lines = [line for line in error.splitlines() if line.startswith(PREFIX)]
    last = lines[-1] if lines else error.strip()[-300:]
    if code is None:
        return "hang", last
    if code < 0 or (code > 2 and code not in (3, 130)):
        return "crash", f"exit {code}: {error.strip()[-300:]}"
    if "Traceback (most recent call last)" in error:
        return "traceback", error.strip()[-2000:]
    if code in (2, 3):
        if len(lines) != 1:
            return "lines", error.strip()[-500:]
        if left := _left(place):
            return "left", f"{left} is left behind: {last}"
        return (UNEXPECTED if f"{PREFIX}{UNEXPECTED}" in last else "refused"), last
    if code == 1:
        return "lines", f"exit 1: {error.strip()[-300:]}"
    if damage.expected is Expected.REFUSED:
        return "silent", f"exit {code} though it should be refused"
    if damage.expected is Expected.ANY:
        return "accepted", ""
    try:
        found = damage.subject.result(place)
    except Exception as broken:
        return "silent", f"no result to compare: {broken!r}"
    return ("same", "") if found == right else ("silent", "another result")


LEFT = ("page.html", "out.json", ".*-draft-*", ".*-old-*")
"""What a command that is refused must not leave."""


def _left(place: Path) -> str:
    found = [path.name for pattern in LEFT for path in place.glob(pattern)]
    return found[0] if found else ""


def _run(place: Path, arguments: Callable[[], list[str]], subject: Subject) -> tuple[int | None, str, float]:
    """Exit code (minus the signal; None for a hang), standard error and processor seconds of a command in a forked process."""
    error = place.parent / f"{place.name}.err"
    if (pid := os.fork()) == 0:
        _child(place, error, arguments, subject.call)
    status, seconds = _waited(pid, PATIENCE * SECONDS)
    if status == -signal.SIGXCPU:
        status = None
    text = error.read_text(encoding="utf-8", errors="replace")
    error.unlink()
    return status, text, seconds


def _waited(pid: int, seconds: float) -> tuple[int | None, float]:
    """How a process ended and its processor seconds; killed if it waits that long, or uses more of the processor than it may."""
    ended = os.pidfd_open(pid)
    used = -1.0
    try:
        while not (in_time := bool(select.select([ended], [], [], seconds)[0])):
            before, used = used, _processor_seconds(pid)
            if used - before < WORKING or used > SECONDS:
                os.killpg(pid, signal.SIGKILL)
                break
    finally:
        os.close(ended)
    _, status, whole = os.wait4(pid, 0)
    return os.waitstatus_to_exitcode(status) if in_time else None, whole.ru_utime + whole.ru_stime


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _child(
    place: Path, error: Path, arguments: Callable[[], list[str]], call: Callable[[Path], None] | None = None
) -> None:
    """Damage, then the command; never returns."""
    code = 70
    try:
        os.setpgid(0, 0)
        os.chdir(place)
        handle = os.open(error, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        words = arguments()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number, goal in ((0, nowhere), (1, nowhere), (2, handle)):
            os.dup2(goal, number)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        here = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (here + MEMORY, here + MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (int(SECONDS), int(SECONDS) + 5))
        _without_training()
        if call is None:
            from quietformer.cli.main import main

            sys.argv = ["quietformer", *words]
            main()
        else:
            _told(call, place)
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 0 if left.code is None else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _told(call: Callable[[Path], None], place: Path) -> None:
    """A program of a user's, whose errors are ours or a failure of ours."""
    try:
        call(place)
    except quietformer.QuietformerError as error:
        print(f"{PREFIX}{' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


def _without_training() -> None:
    """A recipe or study that is accepted would train for as long as it says: enough that it would begin."""
    if Path("killed").exists() or Path("finished").exists() or Path("swept").exists():
        return
    from quietformer.study import run as study_run
    from quietformer.training.interrupt import StoppedError
    from quietformer.training.strategies.base import Strategy

    def stop(*_: object, **__: object) -> None:
        raise StoppedError("begun")

    study_run.one_after_another = stop  # type: ignore[assignment]
    Strategy.take_steps = stop  # type: ignore[method-assign]


def cases(count: int, seed: int, only: str = "") -> list[tuple[Damage, int]]:
    """Every class alike, in turn; the order is the seed's, so that no class is always among those there is no time for."""
    chosen = [damage for title, damage in sorted(EVERY.items()) if only in title]
    random.Random(seed).shuffle(chosen)
    return [(chosen[place % len(chosen)], seed + place // len(chosen)) for place in range(count)]


def save(outcomes: list[Outcome], path: Path) -> None:
    path.write_text(json.dumps([vars(outcome) for outcome in outcomes], indent=1))
