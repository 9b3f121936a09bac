"""Kill every command that writes with SIGKILL, over and over, and see what it leaves.

    python -m experiments.damage.kills [--kills 100] [--seed 0] [--only train] [--keep] [--add]

Every other kill strikes a random file operation below the workspace, the others a random moment. After each kill what stands at
the folder's name must load, or not be there. The same command is then run again, to its end or to the next kill. In the end
weights and files must be those of a command that was never killed. With --add the counts are added to the kept result, so that
the commands can be killed in pieces, each with a random seed of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.damage.jobs import JOBS, Job, readable
from experiments.provenance import keep, keep_option_, made_by

RESULT = Path(__file__).with_suffix(".json")

EVENTS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.chmod", "os.utime")

SETTLING = 1.1
"""Seconds after which a draft that nobody holds is taken for abandoned."""


@dataclass
class Counts:
    """What the kills of one command have shown."""

    kills: int = 0
    at_file_operations: int = 0
    runs: int = 0
    same_weights: int = 0
    unreadable: int = 0
    left_behind: int = 0
    failed: int = 0


def child(job: Job, place: Path, strike_at: int | None, told: int) -> None:
    """The command in this process; never returns."""
    count = 0

    def audit(event: str, args: tuple[object, ...]) -> None:
        nonlocal count
        # Relative names are of the workspace, which is the current folder.
        if (
            event in EVENTS
            and args
            and (str(place) in str(args[0]) or (event != "open" and not str(args[0]).startswith("/")))
        ):
            count += 1
            if count == strike_at:
                os.kill(os.getpid(), signal.SIGKILL)

    code = 1
    try:
        os.setpgid(0, 0)
        os.chdir(place)
        log = os.open(place.parent / f"{place.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.argv = ["quietformer", *job.words]
        from quietformer.cli.main import main

        sys.addaudithook(audit)
        main()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 0
    finally:
        os.write(told, count.to_bytes(8, "little"))
        os._exit(code)


def attempt(job: Job, place: Path, strike_at: int | None, after: float | None) -> tuple[int, int]:
    """Exit code, negative for a signal, and how many file operations there were in a whole command."""
    reads, writes = os.pipe()
    if (pid := os.fork()) == 0:
        child(job, place, strike_at, writes)
    os.close(writes)
    if after is not None:
        time.sleep(after)
        if os.waitpid(pid, os.WNOHANG) == (0, 0):
            os.kill(pid, signal.SIGKILL)
        else:
            return 0, 0
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with os.fdopen(reads, "rb") as pipe:
        return code, int.from_bytes(pipe.read(8), "little")


def loads(out: Path) -> bool:
    """In a process of its own, since this one must stay free of torch's threads."""
    if (pid := os.fork()) == 0:
        try:
            readable(out)()
            os._exit(0)
        except BaseException as error:
            print(f"{out}: {error}", flush=True)
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def soak(job: Job, kills: int, originals: Path, scratch: Path, seed: int) -> Counts:
    """Kills of one command."""
    draw = random.Random(f"{job.name} {seed}")
    counts = Counts()
    undisturbed = _workspace(job, originals, scratch / "undisturbed")
    began = time.monotonic()
    code, operations = attempt(job, undisturbed, None, None)
    whole = time.monotonic() - began
    if code:
        raise RuntimeError(f"{job.name} fails undisturbed: {(scratch / 'undisturbed.log').read_text()[-2000:]}")
    weights, files = job.weights(undisturbed), job.files(undisturbed)
    print(f"{job.name}: {whole:.1f} s, {operations} file operations, {len(weights)} files of weights", flush=True)
    place = _workspace(job, originals, scratch / "0")
    while counts.kills < kills:
        by_file = counts.kills % 2 == 0
        strike_at, after = (draw.randint(1, operations), None) if by_file else (None, draw.uniform(0, whole))
        code, _ = attempt(job, place, strike_at, after)
        if code == -signal.SIGKILL:
            counts.kills += 1
            counts.at_file_operations += by_file
            if job.before and not (place / job.out).is_dir():
                counts.unreadable += 1
                print(f"{place / job.out} is gone", flush=True)
            counts.unreadable += not loads(place / job.out)
            if draw.random() < 0.5 and counts.kills < kills:
                continue  # killed again before it has ended once
            time.sleep(SETTLING)
            code, _ = attempt(job, place, None, None)
        counts.runs += 1
        _judge(job, place, code, weights, files, counts)
        place = _workspace(job, originals, scratch / str(counts.runs))
    return counts


def _judge(job: Job, place: Path, code: int, weights: dict[str, str], files: set[str], counts: Counts) -> None:
    if code:
        counts.failed += 1
        print(f"{place}: exit {code}: {place.with_suffix('.log').read_text()[-500:]}", flush=True)
        return
    found = job.weights(place)
    counts.same_weights += found == weights
    if found != weights:
        print(
            f"{place}: other weights: {sorted(k for k in {*found, *weights} if found.get(k) != weights.get(k))}",
            flush=True,
        )
    if left := sorted(job.files(place) ^ files):
        counts.left_behind += 1
        print(f"{place}: {left[:10]}", flush=True)


def _workspace(job: Job, originals: Path, place: Path) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(originals, place)
    if not job.before:
        shutil.rmtree(place / "there")
    return place


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="one command")
    keep_option_(parser)
    parser.add_argument("--add", action="store_true", help="add to the kept result, and keep that")
    given = parser.parse_args()
    before = json.loads(RESULT.read_text(encoding="utf-8")) if given.add and RESULT.is_file() else {}
    results: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory() as name:
        originals = Path(name) / "originals"
        originals.mkdir()
        subprocess.run(
            [sys.executable, "-m", "experiments.damage.jobs", str(originals)], check=True, stdout=subprocess.DEVNULL
        )
        _import_everything()
        for job in (job for job in JOBS if given.only in job.name):
            scratch = Path(name) / job.name.replace(" ", "-")
            scratch.mkdir()
            kills = max(1, round(job.kills * given.kills / 100))
            results[job.name] = vars(soak(job, kills, originals, scratch, given.seed))
            print(f"  {results[job.name]}", flush=True)
            shutil.rmtree(scratch)
            if given.keep or given.add:  # after each command, since all of them take a while
                keep(__file__, added(results, before, made_by(__file__)))
    total = whole(results)
    print(f"all: {total}")
    sys.exit(bool(total["unreadable"] + total["left_behind"] + total["failed"] + total["runs"] - total["same_weights"]))


def added(results: dict[str, dict[str, int]], before: dict[str, Any], made: dict[str, str]) -> dict[str, Any]:
    """The counts of each command, with those of the pieces before."""
    counts = {name: Counter(found) for name, found in before.get("commands", {}).items()}
    for name, found in results.items():
        counts.setdefault(name, Counter()).update(found)
    commands = {job.name: dict(counts[job.name]) for job in JOBS if job.name in counts}
    return {"pieces": [*before.get("pieces", []), made], "commands": commands, "all": whole(commands)}


def whole(results: dict[str, dict[str, int]]) -> dict[str, int]:
    return {field: sum(result[field] for result in results.values()) for field in Counts.__dataclass_fields__}


HEADS = ("command", "kills", "runs to the end", "identical weights", "something left behind", "unreadable after a kill")


def table(result: dict) -> str:
    """One row for each command, and one for all of them."""
    lines = [f"| {' | '.join(HEADS)} |", f"|{' --- |' * len(HEADS)}"]
    for name, row in (*result["commands"].items(), ("all", result["all"])):
        cells = [row[field] for field in ("kills", "runs", "same_weights", "left_behind", "unreadable")]
        lines.append(f"| {name} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _import_everything() -> None:
    """Once, so that a forked child starts at once."""
    import datasets  # noqa: F401
    import onnxruntime  # noqa: F401
    import transformers.models.bert.modeling_bert
    import transformers.models.opt.modeling_opt
    import transformers.trainer  # noqa: F401

    import quietformer.study.sweep
    import quietformer.workflows.convert
    import quietformer.workflows.export
    import quietformer.workflows.quantize
    import quietformer.workflows.retrofit
    import quietformer.workflows.train  # noqa: F401


if __name__ == "__main__":
    main()
