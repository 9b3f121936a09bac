"""What keeps INT8 from its fp32 original: weights alone, activations alone, both, and a scale for each token.

    python -m experiments.int8.limits --eval-texts FILE [--model minilm] [--sequences 500]

Each row is the search of `export` with other bits, simulated; 16 bits are as good as fp32.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from quietformer.config.options.export import ExportOptions
from quietformer.progress import SILENT
from quietformer.workflows.open_once import open_once
from quietformer.workflows.simulation import simulate_best

ROWS: dict[str, dict[str, Any]] = {
    "weights and activations in 8 bits (the default)": {},
    "a scale for each token": {"granularity": "token"},
    "activations in 8 bits, weights in 16": {"bits": "w16a8"},
    "weights in 8 bits, activations in 16": {"bits": "w8a16"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--eval-texts", type=Path, required=True, help="text that nothing was calibrated on")
    parser.add_argument("--sequences", type=int, default=500)
    parser.add_argument("--search-seconds", type=float, default=60.0)
    given = parser.parse_args()
    for name, words in ROWS.items():
        options = ExportOptions(
            eval_texts=given.eval_texts, sequences=given.sequences, search_seconds=given.search_seconds, **words
        )
        found, _ = simulate_best(open_once(given.model, options, SILENT), options, SILENT)
        metrics = found.runs[0].metrics.model_dump(mode="json", exclude_none=True)
        print(name, metrics, flush=True)


if __name__ == "__main__":
    main()
