"""Damage inputs and see what comes of it:

    python -m tests.fuzz --cases 10000 [--seed 0] [--only 'killed run'] [--jobs 2]

A case that fails is repeated by `--only TITLE --cases 1 --seed SEED`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

from tests.fuzz.case import Damage
from tests.fuzz.originals import make_originals
from tests.fuzz.runner import Fuzzer, Outcome, cases, save


def some(part: list[tuple[str, int]], originals: Path, verbose: bool) -> list[Outcome]:
    """The outcomes of some cases, in a process of their own."""
    from tests.fuzz.case import EVERY

    with tempfile.TemporaryDirectory(dir=originals.parent) as scratch:
        fuzzer = Fuzzer(originals, Path(scratch))
        found = []
        for title, seed in part:
            outcome = fuzzer.run(EVERY[title], seed)
            if outcome.bad or verbose:
                print(
                    f"{outcome.kind:10} {outcome.seconds:5.1f} s  {title}  seed {seed}\n    {outcome.line}", flush=True
                )
            found.append(outcome)
        return found


def fuzz(chosen: list[tuple[Damage, int]], jobs: int, verbose: bool = False) -> list[Outcome]:
    """Every case; the originals are made first."""
    with tempfile.TemporaryDirectory() as place:
        originals = Path(place) / "originals"
        make_originals(originals)
        named = [(damage.title, seed) for damage, seed in chosen]
        if jobs == 1:
            return some(named, originals, verbose)
        parts = [named[start::jobs] for start in range(jobs)]
        with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
            return [one for found in pool.map(some, parts, repeat(originals), repeat(verbose)) for one in found]


def summary(outcomes: list[Outcome]) -> str:
    counts: dict[str, Counter[str]] = {}
    for one in outcomes:
        counts.setdefault(one.damage, Counter())[one.kind] += 1
    kinds = sorted({one.kind for one in outcomes})
    rows = [f"{title:64}" + "".join(f"{counts[title][kind]:11}" for kind in kinds) for title in sorted(counts)]
    whole = Counter(one.kind for one in outcomes)
    head = f"{'class of damage':64}" + "".join(f"{kind:>11}" for kind in kinds)
    return "\n".join([head, *rows, f"{'all':64}" + "".join(f"{whole[kind]:11}" for kind in kinds)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="classes whose title contains this")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--verbose", action="store_true", help="print every case")
    parser.add_argument("--json", type=Path, help="write every outcome here")
    given = parser.parse_args()
    outcomes = fuzz(cases(given.cases, given.seed, given.only), given.jobs, given.verbose)
    print(summary(outcomes))
    if given.json:
        save(outcomes, given.json)
    bad = [one for one in outcomes if one.bad]
    print(f"{len(outcomes)} cases, {len(bad)} bad")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
