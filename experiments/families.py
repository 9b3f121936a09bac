"""Which architectures of the installed transformers take every change that we make: `make families`.

    python -m experiments.families [NAME ...] [--jobs N] [--variants]

Without names all are tried, the result is kept in experiments/families.json, and `python -m experiments.tables` writes
docs/families.md from it. With --variants every normalizer and gate is tried instead, and nothing is kept.
The checks are those of tests/families, which run on a sample in every `make test`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

from experiments.provenance import keep


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", help="architectures to try; all by default, and only then is the table written"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--variants", action="store_true", help="try every normalizer and gate; nothing is kept")
    arguments = parser.parse_args()

    from tests.families.check import check_one
    from tests.families.tiny import architectures

    known = architectures()
    if unknown := sorted(set(arguments.names) - set(known)):
        parser.error(f"no such architecture: {', '.join(unknown)}")
    names = arguments.names or known
    started, rows = time.monotonic(), []
    with ProcessPoolExecutor(arguments.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(check_one, name, arguments.variants) for name in names]):
            row = done.result()
            rows.append(row)
            print(f"[{len(rows)}/{len(names)}] {row['name']}: {row['status']} {row['reason'][:110]}", flush=True)
    rows.sort(key=lambda row: row["name"])
    counts = Counter(row["status"] for row in rows)
    print(f"\n{dict(counts)} of {len(rows)} in {time.monotonic() - started:.0f} s")
    if not arguments.names and not arguments.variants:
        keep(__file__, result(rows, counts), command="make families")
    return 1 if counts["failed"] else 0


def result(rows: list[dict[str, Any]], counts: Counter[str]) -> dict[str, Any]:
    import torch
    import transformers

    versions = {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    return {"versions": versions, "counts": dict(counts), "architectures": rows}


def page(found: dict[str, Any]) -> str:
    """docs/families.md."""
    rows, versions, counts = found["architectures"], found["versions"], Counter(found["counts"])
    lines = [
        "# Which architectures take it",
        "",
        "Written by `make families`: a tiny random model of every architecture in the installed transformers that",
        "calls the attention interface or claims support for attention backends. Checked: the vanilla core, gamma = 0",
        "and open gates against transformers' eager attention; softmax and clipped softmax without holding weights against the",
        "same step by step; that clipping and closed gates do change the output;",
        "causality and padding wherever eager attention has them; save and load; removal.",
        "",
        "*Quantized*: W8A8 put in, calibrated, saved, loaded and taken out again without a trace; in 16 bits the output stays",
        "within 5 % of its largest value; how many weights and activations, or what does not hold.",
        "",
        f"transformers {versions['transformers']}, torch {versions['torch']}: "
        + ", ".join(f"**{counts[status]} {status}**" for status in ("passed", "refused", "failed", "not built"))
        + f" of {len(rows)}; **{sum(row['quantized'] == 'yes' for row in rows)} quantized**.",
        "",
        "*Refused* means that `apply_attention_`, or the first forward of a gated layer, raises",
        "`UnsupportedModelError` with this reason. *Not built* means that no tiny model could be made here, so nothing",
        "is claimed.",
        "",
        "| architecture | class tried | status | layers | difference to eager | causal | padding | quantized | notes |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        parity = "" if row["parity"] is None else "0" if row["parity"] == 0 else f"{row['parity']:.0e}"
        notes = "; ".join([row["reason"], *row["notes"]]).strip("; ").replace("|", "\\|")
        tick = {True: "yes", False: ""}
        quantized = f"{row['weights']} + {row['activations']}" if row["quantized"] == "yes" else row["quantized"]
        quantized = quantized.replace("|", "\\|")
        lines.append(
            f"| {row['name']} | {row['model_class']} | {row['status']} | {row['layers'] or ''} | {parity} "
            f"| {tick[row['causal']]} | {tick[row['padding']]} | {quantized} | {notes} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
