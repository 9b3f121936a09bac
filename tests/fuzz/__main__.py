"""Damage inputs and see what comes of it:

    python -m tests.fuzz --cases 10000 [--seed 0] [--only 'killed run'] [--jobs 2] [--minutes 8]

A case that fails is repeated by `--only TITLE --cases 1 --seed SEED`. Undamaged inputs are made first; --originals FOLDER keeps
them for the next time.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

from tests.fuzz.case import Damage
from tests.fuzz.originals import make_originals
from tests.fuzz.runner import Fuzzer, Outcome, cases, save


@dataclass(frozen=True)
class Effort:
    """How many processes run cases, and until when; the clock is the machine's, not a process's."""

    jobs: int = 1
    until: float = float("inf")
    verbose: bool = False


def some(part: list[tuple[str, int]], originals: Path, effort: Effort) -> list[Outcome]:
    """The outcomes of some cases, in a process of their own; those that are not begun in time are left out."""
    from tests.fuzz.case import EVERY

    with tempfile.TemporaryDirectory() as scratch:
        fuzzer = Fuzzer(originals, Path(scratch))
        found = []
        for title, seed in part:
            if time.time() >= effort.until:
                break
            outcome = fuzzer.run(EVERY[title], seed)
            if outcome.bad or effort.verbose:
                print(
                    f"{outcome.kind:10} {outcome.seconds:5.1f} s  {title}  seed {seed}\n    {outcome.line}", flush=True
                )
            found.append(outcome)
        return found


def fuzz(chosen: list[tuple[Damage, int]], effort: Effort, kept: Path | None = None) -> list[Outcome]:
    """Every case; the originals are made first, unless they are kept from an earlier time."""
    with tempfile.TemporaryDirectory() as place:
        originals = kept or Path(place) / "originals"
        if not originals.is_dir():
            make_originals(originals)
        named = [(damage.title, seed) for damage, seed in chosen]
        if effort.jobs == 1:
            return some(named, originals, effort)
        parts = [named[start :: effort.jobs] for start in range(effort.jobs)]
        with ProcessPoolExecutor(effort.jobs, mp_context=get_context("fork")) as pool:
            return [one for found in pool.map(some, parts, repeat(originals), repeat(effort)) for one in found]


def summary(outcomes: list[Outcome]) -> str:
    counts: dict[str, Counter[str]] = {}
    for one in outcomes:
        counts.setdefault(one.damage, Counter())[one.kind] += 1
    kinds = sorted({one.kind for one in outcomes})
    rows = [f"{title:64}" + "".join(f"{counts[title][kind]:11}" for kind in kinds) for title in sorted(counts)]
    whole = Counter(one.kind for one in outcomes)
    head = f"{'class of damage':64}" + "".join(f"{kind:>11}" for kind in kinds)
    return "\n".join([head, *rows, f"{'all':64}" + "".join(f"{whole[kind]:11}" for kind in kinds)])


def case_options_(parser: argparse.ArgumentParser, cases: int) -> None:
    """Which cases, and how long."""
    parser.add_argument("--cases", type=int, default=cases)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="classes whose title contains this")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no case after so long")
    parser.add_argument("--originals", type=Path, help="folder for the undamaged inputs, made if it is not there")
    parser.add_argument("--verbose", action="store_true", help="print every case")


def chosen_cases(given: argparse.Namespace) -> list[Outcome]:
    """The outcomes of the cases that were asked for, with a summary."""
    effort = Effort(given.jobs, time.time() + 60 * given.minutes, given.verbose)
    outcomes = fuzz(cases(given.cases, given.seed, given.only), effort, given.originals)
    print(summary(outcomes))
    print(f"{len(outcomes)} cases, {sum(one.bad for one in outcomes)} bad")
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    case_options_(parser, 1000)
    parser.add_argument("--json", type=Path, help="write every outcome here")
    given = parser.parse_args()
    outcomes = chosen_cases(given)
    if given.json:
        save(outcomes, given.json)
    sys.exit(any(one.bad for one in outcomes))


if __name__ == "__main__":
    main()
