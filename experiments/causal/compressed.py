"""Does a compressed-tensors folder of a causal language model give in transformers what the simulation gives?

    python -m experiments.causal.compressed MODEL TEXT --calibration OTHER_TEXT [--windows N] [--keep]

The format has linear layers and their inputs, static or per token. It has no place for a prefix.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

import quietformer as qf
from experiments.causal.steps import text_windows
from experiments.documents import markdown
from experiments.provenance import keep, keep_option_
from quietformer.analysis.evaluate import evaluate, reference_run
from quietformer.deployment.compressed_weights import write_compressed
from quietformer.deployment.shipment import plain_config, write_json
from quietformer.results import numbers

WAYS: dict[str, dict[str, Any]] = {"static": {}, "per token": {"granularity": "token"}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder or a hub id")
    parser.add_argument("text", type=Path, help="the text that is measured on")
    parser.add_argument("--calibration", type=Path, required=True, help="other text, for ranges")
    parser.add_argument("--length", type=int, default=256, help="tokens of a window")
    parser.add_argument("--windows", type=int, help="so many windows, evenly over the text, instead of all")
    keep_option_(parser)
    asked = parser.parse_args()
    torch.set_grad_enabled(False)
    evaluation, total = text_windows(asked.model, asked.text, asked.length, asked.windows)
    calibration, _ = text_windows(asked.model, asked.calibration, asked.length, 16)
    original = qf.open_model(asked.model)
    rows = {}
    for name, fields in WAYS.items():
        model = copy.deepcopy(original)
        qf.quantize_(model, qf.QuantSpec(placement="linear", per_channel=True, **fields), calibration[0])
        qf.calibrate_(model, calibration)
        simulated = reference_run(model, evaluation, "causal")
        with tempfile.TemporaryDirectory() as place:
            described = write_compressed(model, Path(place))
            write_json(Path(place) / "config.json", plain_config(original) | {"quantization_config": described})
            loaded = AutoModelForCausalLM.from_pretrained(place)
            size = (Path(place) / "model.safetensors").stat().st_size
            found = evaluate(loaded.eval(), evaluation, "causal", simulated).measured
        expected = simulated.evaluation.measured["perplexity"]
        rows[name] = {
            "simulation": expected,
            "transformers": found["perplexity"],
            "difference": found["perplexity"] / expected - 1,
            "token_agreement": found["token_agreement"],
            "bytes": size,
        }
        print(name, rows[name], flush=True)
    result = {
        "model": type(original).__name__, "parameters": original.num_parameters(), "length": asked.length,
        "windows": sum(len(batch["input_ids"]) for batch in evaluation), "of_windows": total, "rows": rows,
    }  # fmt: skip
    print(table(result))
    if asked.keep:
        keep(__file__, result)


def table(result: dict[str, Any]) -> str:
    lines = [["scales of activations", "simulation", "transformers", "difference", "same next token", "file"]]
    for name, row in result["rows"].items():
        lines.append(
            [
                name, numbers.metric(row["simulation"], "perplexity"), numbers.metric(row["transformers"], "perplexity"),
                numbers.percent(row["difference"], 2), numbers.percent(row["token_agreement"], 1),
                numbers.megabytes(row["bytes"]),
            ]
        )  # fmt: skip
    return markdown(lines)


if __name__ == "__main__":
    main()
