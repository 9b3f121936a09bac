"""Damage every kind of input, many thousand times, and count what comes of it.

    python -m experiments.damage.fuzz [--cases 10000] [--seed 0] [--jobs 2] [--keep]

The cases are those of `python -m tests.fuzz`, which says more about each of them.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from experiments.provenance import keep, keep_option_
from tests.fuzz.__main__ import fuzz, summary
from tests.fuzz.runner import GOOD, cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    keep_option_(parser)
    given = parser.parse_args()
    outcomes = fuzz(cases(given.cases, given.seed), given.jobs)
    print(summary(outcomes))
    counts: dict[str, Counter[str]] = {}
    for one in outcomes:
        counts.setdefault(one.damage, Counter())[one.kind] += 1
    bad = sum(one.bad for one in outcomes)
    print(f"{len(outcomes)} cases, {bad} bad")
    if given.keep:
        keep(
            __file__,
            {"cases": len(outcomes), "bad": bad, "classes": {name: dict(counts[name]) for name in sorted(counts)}},
        )
    sys.exit(bool(bad))


HEADS = (
    "input",
    "kinds of damage",
    "cases",
    "refused in one line",
    "same result",
    "another valid input",
    "anything else",
)


def table(result: dict) -> str:
    """One row for each kind of input; a kind of damage belongs to what stands before the colon in its name."""
    rows: dict[str, Counter[str]] = {}
    for name, found in result["classes"].items():
        area = name.partition(":")[0].removesuffix(", converted").removesuffix(", started")
        row = rows.setdefault(area, Counter())
        row["kinds"] += 1
        for kind, count in found.items():
            row[kind if kind in GOOD else "bad"] += count
            row["cases"] += count
    lines = [f"| {' | '.join(HEADS)} |", f"|{' --- |' * len(HEADS)}"]
    for area, row in rows.items():
        cells = [row[name] for name in ("kinds", "cases", "refused", "same", "accepted", "bad")]
        lines.append(f"| {area} | {' | '.join(f'{cell:,}' for cell in cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
