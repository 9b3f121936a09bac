"""Damage every kind of input, many thousand times, and count what comes of it.

    python -m experiments.damage.fuzz [--cases 10000] [--seed 0] [--jobs 2] [--minutes 8] [--keep] [--add]

The cases are those of `python -m tests.fuzz`, which says more about each of them. With --add they are added to the kept result,
so that many cases can be run in pieces, each with a random seed of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from experiments.provenance import keep, keep_option_, made_by
from tests.fuzz.__main__ import case_options_, chosen_cases
from tests.fuzz.runner import GOOD, Outcome

RESULT = Path(__file__).with_suffix(".json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    case_options_(parser, 10_000)
    keep_option_(parser)
    parser.add_argument("--add", action="store_true", help="add to the kept result, and keep that")
    given = parser.parse_args()
    outcomes = chosen_cases(given)
    if given.keep or given.add:
        before = json.loads(RESULT.read_text(encoding="utf-8")) if given.add and RESULT.is_file() else {}
        keep(__file__, counted(outcomes, before, made_by(__file__)))
    sys.exit(any(one.bad for one in outcomes))


def counted(outcomes: list[Outcome], before: dict[str, Any], made: dict[str, str]) -> dict[str, Any]:
    """How the cases of each class ended, with those of the pieces before."""
    counts = {name: Counter(found) for name, found in before.get("classes", {}).items()}
    for one in outcomes:
        counts.setdefault(one.damage, Counter())[one.kind] += 1
    piece = made | {"cases": len(outcomes), "bad": sum(one.bad for one in outcomes)}
    pieces = [*before.get("pieces", []), piece]
    return {
        "cases": sum(one["cases"] for one in pieces),
        "bad": sum(one["bad"] for one in pieces),
        "pieces": pieces,
        "classes": {name: dict(counts[name]) for name in sorted(counts)},
    }


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
        area = name.partition(":")[0].partition(",")[0]
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
