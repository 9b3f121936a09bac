"""Whether clipped softmax and gates keep outliers away in models as small as those of examples/small_models.py.

    python -m experiments.inspection.small_models RUNS [--keep]

RUNS holds what `python examples/small_models.py RUNS --steps 4000` trained; the BERTs are meant, and the vision transformer.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from experiments.documents import markdown
from experiments.provenance import keep, keep_option_

MODELS = {"softmax": "bert-softmax", "clipped": "bert-clipped", "gated": "bert-gated", "vit": "vit-softmax"}
"""Names in the table, and the folders that the example writes."""


def measured(folder: Path) -> dict[str, Any]:
    """The extremes of all layers' FFN outputs, as `quietformer inspect` finds them."""
    with tempfile.TemporaryDirectory() as scratch:
        page, path = Path(scratch) / "page.html", Path(scratch) / "report.json"
        words = ["inspect", str(folder), "--page", str(page), "--json", str(path)]
        subprocess.run([sys.executable, "-m", "quietformer", *words], check=True, stdout=subprocess.DEVNULL)
        report = json.loads(path.read_text(encoding="utf-8"))
    rows = [row for row in report["sites"] if row["site"] == "ffn_output"]
    return {
        "largest_ffn_output": max(max(-row["min"], row["max"]) for row in rows),
        "kurtosis": max(row["kurtosis"] for row in rows),
    }


def table(result: dict[str, Any]) -> str:
    """The table of docs/inspect.md."""
    lines = [
        [name, f"{row['largest_ffn_output']:.1f}", f"{row['kurtosis']:.0f}"] for name, row in result["models"].items()
    ]
    return markdown([["model", "largest FFN output", "largest kurtosis of an FFN output"], *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    keep_option_(parser)
    arguments = parser.parse_args()
    result = {"models": {name: measured(arguments.runs / folder) for name, folder in MODELS.items()}}
    print(table(result))
    if arguments.keep:
        keep(__file__, result)


if __name__ == "__main__":
    main()
