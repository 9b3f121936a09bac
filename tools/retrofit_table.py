"""The table of one retrofit in a document, from what it left.

python -m tools.retrofit_table demo/retrofit.json                                        # README's table of `make demo`
python -m tools.retrofit_table OUT/retrofit.json --document docs/retrofit.md --mark smol --json results/retrofit_smollm2.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tools.tables import markdown, write_between

from quietformer.cli.retrofit import table_rows
from quietformer.files import write_json

KEPT = (
    "version", "kind", "sentence", "model", "task", "primary", "rows", "steps", "minutes", "best", "attention", "seed", "recipe",
    "data", "command", "versions",
)  # fmt: skip
"""What is kept of a retrofit's figures: all but the activations it looked at."""


def portable(value: Any) -> Any:
    """Files by name: where they lay on one machine says nothing on another."""
    if isinstance(value, dict):
        return {name: portable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [portable(item) for item in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figures", type=Path)
    parser.add_argument("--document", type=Path, default=Path("README.md"))
    parser.add_argument("--mark", default="demo")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    figures = json.loads(arguments.figures.read_text(encoding="utf-8"))
    table = markdown([["", "before", "after"], *table_rows(figures)])
    spent = f"{figures['steps']} steps, {figures['minutes']:.1f} minutes of training."
    write_between(arguments.document, arguments.mark, f"{table}\n{spent}\n")
    if arguments.json is not None:
        write_json(arguments.json, portable({name: figures[name] for name in KEPT}))


if __name__ == "__main__":
    main()
