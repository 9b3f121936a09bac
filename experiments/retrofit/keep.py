"""Keeps the result of one retrofit for the documents, without the activations it looked at.

    python -m experiments.retrofit.keep demo=demo/retrofit.json          # what `make demo` left: the table of the README
    python -m experiments.retrofit.keep smollm2=OUT/retrofit.json        # the causal model of docs/retrofit.md

The file is what the code that is checked out wrote. `python -m experiments.tables` then writes the tables.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from experiments.documents import markdown
from experiments.provenance import keep
from quietformer.results.before_after import ComparisonRow

KEPT = (
    "version", "kind", "sentence", "model", "task", "primary", "rows", "steps", "minutes", "best", "attention", "seed", "recipe",
    "data", "command", "versions",
)  # fmt: skip


def portable(value: Any) -> Any:
    """Files by name: their folders differ by machine."""
    if isinstance(value, dict):
        return {name: portable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [portable(item) for item in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def table(result: dict[str, Any]) -> str:
    rows = [ComparisonRow(**row | {"what": row["what"].replace("floating point", "fp32")}) for row in result["rows"]]
    lines = markdown([["", "before", "after"], *(row.cells() for row in rows)])
    return f"{lines}\n{result['steps']} steps, {result['minutes']:.1f} minutes of training.\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("retrofits", nargs="+", metavar="NAME=FILE")
    for given in parser.parse_args().retrofits:
        name, _, path = given.partition("=")
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        kept = portable({field: found[field] for field in KEPT})
        keep(str(Path(__file__).with_name(name)), kept, command=kept["command"])


if __name__ == "__main__":
    main()
