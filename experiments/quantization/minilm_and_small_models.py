"""What INT8 and fewer bits do to the real MiniLM and to small models, in simulation and as real INT8.

    python -m experiments.quantization.minilm_and_small_models RUNS [--only minilm|small]

RUNS holds what `python examples/small_models.py RUNS` trained. The result is always kept; with `--only` the other part stays
as it was. `python -m experiments.tables` writes docs/figures-quantize.md from it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from experiments.provenance import keep
from quietformer.results.export import LatencyRow

RESULT = Path(__file__).with_suffix(".json")
SMALL = [f"{family}-{variant}" for family in ("bert", "opt") for variant in ("softmax", "clipped", "gated")]
WORDS = {
    "in floating point": "in fp32",
    "every site": "every tensor",
    "norms, sums": "norms, residual adds",
    "products, sums": "products, adds",
}
"""Words of the kept results, and what the documents say instead."""
BITS = ("w8a8", "w6a8", "w4a8", "w6a6")


def quietformer(*arguments: object) -> dict[str, Any]:
    """The figures a command writes as JSON."""
    words = [str(argument) for argument in arguments]
    print("quietformer", *words, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figures.json"
        page = ["--page", str(Path(folder) / "page.html")] if words[0] == "quantize" else []
        out = [str(Path(folder) / "out")] if words[0] == "export" else []
        command = [sys.executable, "-m", "quietformer", *words[:2], *out, *words[2:], *page, "--json", str(path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        figures: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    figures.pop("plan", None)
    figures.pop("sensitivity", None)
    figures["model"]["name"] = Path(figures["model"]["name"]).name
    shown = ["RUNS/" + word.rpartition("/")[2] if "/" in word else word for word in words]
    return figures | {"command": "quietformer " + " ".join(shown)}


EVERY_TENSOR = ("--placement", "paper", "--no-search")


def measure_minilm() -> dict[str, Any]:
    """One after the other, on an otherwise idle machine: these are timed."""
    return {
        "per tensor": quietformer("export", "minilm", *EVERY_TENSOR, "--no-per-channel", "--baselines", "--threads", 1),
        "per channel": quietformer("export", "minilm", *EVERY_TENSOR, "--threads", 1),
        "uint8": quietformer(
            "export", "minilm", *EVERY_TENSOR, "--no-per-channel", "--weight-type", "uint8", "--threads", 1
        ),
    }


def measure_small(runs: Path) -> dict[str, Any]:
    """Two at a time with a thread each: nothing here is timed."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with ThreadPoolExecutor(2) as pool:
        exports = {
            name: pool.submit(quietformer, "export", runs / name, *EVERY_TENSOR, "--no-per-channel") for name in SMALL
        }
        quantized = {
            (name, bits): pool.submit(
                quietformer, "quantize", runs / name, "--bits", bits, "--weights", "mse", "--sequences", 128
            )
            for name in SMALL
            for bits in BITS
        }
        return {
            "small": {name: done.result() for name, done in exports.items()},
            "bits": {name: {bits: quantized[name, bits].result() for bits in BITS} for name in SMALL},
        }


def minilm_lines(figures: dict[str, Any]) -> list[str]:
    per_tensor, per_channel = figures["minilm"]["per tensor"], figures["minilm"]["per channel"]
    names = list(per_tensor["float"])
    rows: list[tuple[str, dict[str, float], int | None]] = [
        ("fp32 ONNX", per_tensor["float"], per_tensor["export"]["bytes"]["fp32"]),
        ("W8A8, simulated", per_tensor["runs"][0]["figures"], None),
        ("W8A8, real INT8 ONNX", per_tensor["real"], per_tensor["export"]["bytes"]["int8"]),
        ("per-channel weights, simulated", per_channel["runs"][0]["figures"], None),
        ("per-channel weights, real INT8 ONNX", per_channel["real"], per_channel["export"]["bytes"]["int8"]),
    ]
    rows += [(plain(row["name"]), row["figures"] or {}, row["bytes"]) for row in per_tensor["baselines"]]
    lines = [f"| | {' | '.join(names)} | MB |", "| --- " * (len(names) + 2) + "|"]
    for name, values, size in rows:
        shown = " | ".join(f"{values[n]:.4f}" if values.get(n) is not None else "failed" for n in names)
        lines.append(f"| {name} | {shown} | {'' if size is None else f'{size / 1e6:.1f}'} |")
    return lines


def latency_table(figures: dict[str, Any]) -> list[str]:
    lines = [
        "| weights stored as | batch | length | torch fp32 ms | ONNX fp32 ms | ONNX INT8 ms | speedup |",
        "| --- " * 7 + "|",
    ]
    for key in ("per tensor", "uint8"):
        export = figures["minilm"][key]["export"]
        for row in map(LatencyRow.model_validate, export["latency"]):
            runs = [row.run(*which) for which in (("torch", "fp32"), ("onnxruntime", "fp32"), ("onnxruntime", "int8"))]
            times = " | ".join(f"{run.median_ms:.1f}" for run in runs)
            lines.append(
                f"| {export['weight_type']} | {row.batch} | {row.length} | {times} | {row.speedup(runs[-1]):.2f} |"
            )
    return lines


def small_table(figures: dict[str, Any]) -> list[str]:
    lines = ["| model | fp32 | simulated W8A8 | real INT8 | difference |", "| --- " * 5 + "|"]
    for name, found in figures["small"].items():
        simulated, real = found["runs"][0]["figures"]["perplexity"], found["real"]["perplexity"]
        lines.append(
            f"| {name} | {found['float']['perplexity']:.2f} | {simulated:.2f} | {real:.2f} | {abs(real / simulated - 1):.2%} |"
        )
    return lines


def bits_table(figures: dict[str, Any]) -> list[str]:
    lines = [
        f"| model | fp32 | {' | '.join(bits.upper() for bits in BITS)} |",
        "| --- " * (len(BITS) + 2) + "|",
    ]
    for name, by_bits in figures["bits"].items():
        cells = []
        for bits in BITS:
            found = by_bits[bits]["quantized"]["perplexity"]
            cells.append("broken" if found["mean"] is None else f"{found['mean']:.2f} ± {found['std']:.2f}")
        lines.append(f"| {name} | {by_bits['w8a8']['float']['perplexity']:.2f} | {' | '.join(cells)} |")
    return lines


def plain(text: str) -> str:
    """What the kept results say, in today's words."""
    for old, new in WORDS.items():
        text = text.replace(old, new)
    return text


def page(figures: dict[str, Any]) -> str:
    exported = figures["minilm"]["per tensor"]
    versions = exported["export"]["versions"]
    return "\n".join([
        "# Results: quantization",
        "",
        "Measured by `make quantization RUNS=DIR`, written by `make tables`; the small models are those of",
        "`python examples/small_models.py DIR` (BERT, 4,000 steps) and `--only opt --steps 3000`.",
        "",
        "## The real MiniLM",
        "",
        f"`{exported['command']}`: agreement of sentence embeddings with fp32 on 64 passages of 128 tokens of the",
        "built-in text, calibrated on 128 others; the nearest neighbour is among those 64.",
        "",
        *minilm_lines(figures),
        "",
        "What each baseline quantizes:",
        "",
        *(f"- {plain(row['name'])}: {row.get('error') or plain(row['what'])}." for row in exported["baselines"]),
        "",
        f"Milliseconds, one thread, onnxruntime {versions['onnxruntime']}, a processor with AVX2 and without VNNI:",
        "",
        *latency_table(figures),
        "",
        "## Small models: simulation and real INT8",
        "",
        "Perplexity of 4-layer models, 96 wide, one training seed, on 64 sequences. At this size and with this training clipped",
        "softmax grew larger outliers than softmax in the BERT ([inspect.md](inspect.md)), and pays for them here.",
        "",
        *small_table(figures),
        "",
        "## Fewer bits",
        "",
        "The same models: perplexity on 128 sequences, weights by MSE, activations by running min-max, mean and standard",
        "deviation of three calibrations.",
        "",
        *bits_table(figures),
        "",
    ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument(
        "--only", choices=("minilm", "small"), help="measure this part again and keep the results of the other"
    )
    arguments = parser.parse_args()
    found: dict[str, Any] = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    if arguments.only in (None, "minilm"):
        found["minilm"] = measure_minilm()
    if arguments.only in (None, "small"):
        found |= measure_small(arguments.runs)
    keep(__file__, {name: found[name] for name in ("small", "bits", "minilm") if name in found})


if __name__ == "__main__":
    main()
