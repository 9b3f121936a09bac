"""What keeps INT8 from its fp32 original: weights alone, activations alone, both, and a scale for each token.

    python -m experiments.int8.limits --eval-texts FILE [--model minilm] [--sequences 500] [--keep]

Each row is the search of `export` with other bits, simulated; 16 bits are as good as fp32.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from experiments.documents import markdown
from experiments.provenance import keep, keep_option_
from quietformer.config.options.export import ExportOptions
from quietformer.progress import SILENT
from quietformer.results import numbers
from quietformer.workflows.open_once import open_once
from quietformer.workflows.simulation import simulate_best

ROWS: dict[str, dict[str, Any]] = {
    "weights and activations in 8 bits (the default)": {},
    "a scale for each token": {"granularity": "token"},
    "activations in 8 bits, weights in 16": {"bits": "w16a8"},
    "weights in 8 bits, activations in 16": {"bits": "w8a16"},
}
SHOWN = ("cosine", "neighbour_agreement")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--eval-texts", type=Path, required=True, help="text that nothing was calibrated on")
    parser.add_argument("--sequences", type=int, default=500)
    parser.add_argument("--search-seconds", type=float, default=60.0)
    keep_option_(parser)
    given = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    for name, words in ROWS.items():
        options = ExportOptions(
            eval_texts=given.eval_texts, sequences=given.sequences, search_seconds=given.search_seconds, **words
        )
        found, _ = simulate_best(open_once(given.model, options, SILENT), options, SILENT)
        rows[name] = found.runs[0].metrics.model_dump(mode="json", exclude_none=True)
        print(name, rows[name], flush=True)
    result = {"model": given.model, "text": given.eval_texts.name, "sequences": given.sequences, "rows": rows}
    print(table(result))
    if given.keep:
        keep(__file__, result)


def table(result: dict[str, Any]) -> str:
    heads = [f"{result['model']}, simulated, {result['sequences']} texts", *(name.replace("_", " ") for name in SHOWN)]
    rows = [[name, *(numbers.metric(found[shown], shown) for shown in SHOWN)] for name, found in result["rows"].items()]
    return markdown([heads, *rows])


if __name__ == "__main__":
    main()
