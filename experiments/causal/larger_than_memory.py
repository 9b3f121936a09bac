"""Is a model exported layer by layer in less memory than its weights take?

    python -m experiments.causal.larger_than_memory FOLDER [--blocks N] [--keep] [-- OPTIONS OF export]

FOLDER gets OPT-1.3B's architecture with random weights, 5.3 GB in fp32, made one block at a time; one that is there is used. The
export runs in a process of its own, whose memory is read from the system while it runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from accelerate import init_empty_weights
from safetensors.torch import save_file
from torch import Tensor
from transformers import OPTConfig, OPTForCausalLM

from experiments.documents import markdown
from experiments.provenance import keep, keep_option_
from quietformer.data.tokenizers import train_tokenizer
from quietformer.results import numbers

MEMORY = ("VmHWM", "RssAnon", "RssFile")
"""Most memory in all; and of it, memory of the process's own, and files that are mapped, such as libraries."""

OPT_1_3B: dict[str, Any] = {
    "vocab_size": 50272, "hidden_size": 2048, "word_embed_proj_dim": 2048, "num_attention_heads": 32, "ffn_dim": 8192,
    "max_position_embeddings": 2048,
}  # fmt: skip
QUICK = ("--length", "32", "--batch-size", "2", "--calibration", "2", "--sequences", "2")
"""Random weights need little text: it is memory that is measured."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the model is, or is made")
    parser.add_argument("--blocks", type=int, default=24)
    keep_option_(parser)
    parser.add_argument("options", nargs="*", default=QUICK, help="options of `quietformer export`")
    asked = parser.parse_args()
    if not (asked.folder / "config.json").is_file():
        make_model(asked.folder, asked.blocks)
    with tempfile.TemporaryDirectory(dir=asked.folder.parent) as place:
        out = Path(place) / "out"
        report, peaks, seconds = exported(asked.folder, out, asked.options)
        written = sum(path.stat().st_size for path in out.glob("*.safetensors"))
        plan, _, _ = exported(asked.folder, Path(place) / "planned", [*asked.options, "--plan"])
    result = {
        "model": report["model"]["class_name"], "parameters": report["model"]["parameters"], "blocks": report["blocks"],
        "weights": report["cost"]["weights_read"], "written": written, "options": list(asked.options),
        "integer_layers": report["integer_layers"], "smoothed_groups": report["smoothing"]["groups"], "peaks": peaks,
        "seconds": seconds, "seconds_by_step": report["cost"]["seconds_by_step"], "planned_peak": plan["memory"]["peak"],
        "planned_seconds": plan["seconds"],
        "perplexity": [report["fp32"]["perplexity"], report["runs"][0]["metrics"]["perplexity"]],
    }  # fmt: skip
    print(table(result))
    if asked.keep:
        keep(__file__, result)


def make_model(folder: Path, blocks: int) -> None:
    """The folder, a shard for each block; no two shards are in memory at once."""
    folder.mkdir(parents=True)
    config = OPTConfig(**OPT_1_3B, num_hidden_layers=blocks, architectures=["OPTForCausalLM"], dtype="float32")
    with init_empty_weights():
        model = OPTForCausalLM(config)
    model.tie_weights()
    shards: dict[str, list[str]] = {}
    for name, _ in model.named_parameters():
        shards.setdefault(name.partition(".layers.")[2].partition(".")[0], []).append(name)
    files: dict[str, str] = {}
    for place, names in enumerate(shards.values(), start=1):
        file = f"model-{place:05}-of-{len(shards):05}.safetensors"
        generator = torch.Generator().manual_seed(place)
        save_file(dict(random_tensors(model, names, generator)), folder / file, {"format": "pt"})
        files |= dict.fromkeys(names, file)
    index = {"metadata": {}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    tokenizer = train_tokenizer((topics[key] for key in sorted(topics)), vocabulary=2000, characters=200_000)
    tokenizer.save_pretrained(folder)
    config.save_pretrained(folder)  # last: it says that the folder is complete


def random_tensors(model: OPTForCausalLM, names: list[str], generator: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    for name in names:
        shape = model.get_parameter(name).shape
        if len(shape) > 1:
            yield name, torch.randn(shape, generator=generator) * 0.02
        else:
            yield name, torch.ones(shape) if "norm.weight" in name else torch.zeros(shape)


def exported(model: Path, out: Path, options: list[str]) -> tuple[dict[str, Any], dict[str, int], float]:
    """The report of an export layer by layer, the most memory of each kind it held, and how long it took."""
    peaks, begin = dict.fromkeys(MEMORY, 0), time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "report.json"
        words = ["export", str(model), str(out), "--layer-by-layer", "--json", str(report), *options]
        process = subprocess.Popen([sys.executable, "-m", "quietformer", *words])
        while process.poll() is None:
            for kind, held in held_by(process.pid).items():
                peaks[kind] = max(peaks[kind], held)
            time.sleep(0.02)
        if process.returncode:
            raise SystemExit(process.returncode)
        return json.loads(report.read_text(encoding="utf-8")), peaks, time.perf_counter() - begin


def held_by(process: int) -> dict[str, int]:
    """Bytes by kind, as the system tells them; nothing once the process has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    told = (line.split() for line in lines)
    return {words[0][:-1]: int(words[1]) * 1024 for words in told if words and words[0][:-1] in MEMORY}


def table(result: dict[str, Any]) -> str:
    peaks = result["peaks"]
    rows = [
        ["weights in fp32", numbers.size(result["weights"])],
        ["most memory at once (VmHWM)", numbers.size(peaks["VmHWM"])],
        ["of it the process's own (RssAnon, at most)", numbers.size(peaks["RssAnon"])],
        ["of it mapped files, libraries included (RssFile, at most)", numbers.size(peaks["RssFile"])],
        ["memory that the plan foretold", numbers.size(result["planned_peak"])],
        ["time", numbers.duration(result["seconds"])],
        ["time that the plan foretold", numbers.duration(result["planned_seconds"])],
        ["written", numbers.size(result["written"])],
    ]
    return markdown([[f"{result['model']}, {numbers.millions(result['parameters'])} parameters", ""], *rows])


if __name__ == "__main__":
    main()
