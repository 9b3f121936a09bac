"""What each training-free step brings to a causal language model in INT8: smoothing, rotation, a prefix, scales per token.

    python -m experiments.causal.steps MODEL TEXT --calibration OTHER_TEXT [--windows N] [--only ROW ...] [--keep]

Perplexity over TEXT in windows that do not overlap, each token but the first of a window scored once; `--windows` takes so many,
evenly over the text. With `--only` and `--keep` the other rows stay as they were kept, so that the rows can be measured one
after the other.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

import quietformer as qf
from experiments.documents import markdown
from experiments.provenance import keep, keep_option_
from quietformer.analysis.evaluate import Reference, evaluate, reference_run
from quietformer.architectures.forward import Batch
from quietformer.data.sliding_windows import file_tokens, sliding_windows
from quietformer.data.tokenizers import tokenizer_of
from quietformer.results import numbers
from quietformer.transforms.find_prefix import prefix_trials
from quietformer.transforms.smoothquant import migrate_
from quietformer.workflows.smoothing_exponent import least_error_exponent

Steps = tuple[str, ...]

PRODUCTS = {"placement": "matmul", "per_channel": True}
CACHE = {"placement": "linear", "per_channel": True, "rules": ("*:weight", "*:input")}
EVERY = {"placement": "paper", "per_channel": True}
CALIBRATION = 16
"""Windows of the other text."""

ATTENTION = ("*:probabilities", "*:value")

ROWS: dict[str, tuple[Steps, dict[str, Any] | None]] = {
    "fp32": ((), None),
    "fp32, prefix": (("prefix",), None),
    "static": ((), PRODUCTS),
    "static, smoothing": (("smoothing",), PRODUCTS),
    "static, rotation": (("rotation",), PRODUCTS),
    "static, prefix": (("prefix",), PRODUCTS),
    "static, prefix, rotation": (("prefix", "rotation"), PRODUCTS),
    "static, prefix, smoothing": (("prefix", "smoothing"), PRODUCTS),
    "static, prefix, rotation, smoothing": (("prefix", "rotation", "smoothing"), PRODUCTS),
    "static, prefix, smoothing, second product of attention in fp32": (
        ("prefix", "smoothing"), PRODUCTS | {"rules": ATTENTION},
    ),
    "per token": ((), PRODUCTS | {"granularity": "token"}),
    "per token, prefix": (("prefix",), PRODUCTS | {"granularity": "token"}),
    "per token, prefix, smoothing": (("prefix", "smoothing"), PRODUCTS | {"granularity": "token"}),
    "static, prefix, smoothing, key/value cache per token": (("prefix", "smoothing"), PRODUCTS | {"kv_cache": "token"}),
    "static, prefix, smoothing, key/value cache per channel": (
        ("prefix", "smoothing"), PRODUCTS | {"kv_cache": "channel"},
    ),
    "fp32, prefix, INT8 key/value cache per tensor": (("prefix",), CACHE | {"kv_cache": "tensor"}),
    "fp32, prefix, INT8 key/value cache per token": (("prefix",), CACHE | {"kv_cache": "token"}),
    "fp32, prefix, INT8 key/value cache per channel": (("prefix",), CACHE | {"kv_cache": "channel"}),
    "every tensor": ((), EVERY),
    "every tensor, prefix": (("prefix",), EVERY),
    "every tensor, prefix, rotation": (("prefix", "rotation"), EVERY),
}  # fmt: skip
"""The steps in their order, and how the model is quantized then; None: not at all."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder or a hub id")
    parser.add_argument("text", type=Path, help="the text that is measured on")
    parser.add_argument("--calibration", type=Path, required=True, help="other text, for ranges and the prefix")
    parser.add_argument("--length", type=int, default=256, help="tokens of a window")
    parser.add_argument("--windows", type=int, help="so many windows, evenly over the text, instead of all")
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS), metavar="ROW")
    keep_option_(parser)
    asked = parser.parse_args()
    torch.set_grad_enabled(False)
    study = Study(asked)
    for row in asked.only:
        study.measure(row)
        print(table(study.result), flush=True)
        if asked.keep:
            keep(__file__, study.result)


class Study:
    """The model, its data, and the rows measured so far."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.model = qf.open_model(asked.model)
        self.evaluation, total = text_windows(asked.model, asked.text, asked.length, asked.windows)
        self.calibration, _ = text_windows(asked.model, asked.calibration, asked.length, CALIBRATION)
        tokenizer = tokenizer_of(asked.model)
        self.trials = prefix_trials(self.model, self.calibration)
        self.reference: Reference | None = None
        self.result: dict[str, Any] = {
            "model": type(self.model).__name__,
            "parameters": self.model.num_parameters(),
            "length": asked.length,
            "windows": sum(len(batch["input_ids"]) for batch in self.evaluation),
            "of_windows": total,
            "prefix": [
                {"tokens": [tokenizer.decode([token]) for token in trial.tokens], "bits_lost": trial.bits_lost}
                for trial in self.trials
            ],
            "rows": {},
        }
        kept = Path(__file__).with_suffix(".json")
        if kept.is_file():
            before = json.loads(kept.read_text(encoding="utf-8"))
            if all(before.get(name) == self.result[name] for name in ("length", "windows", "parameters")):
                self.result["rows"] = before["rows"]

    def measure(self, row: str) -> None:
        """One row: the steps, the quantization, and what is left of the model."""
        begin = time.perf_counter()
        if self.reference is None:
            self.reference = reference_run(self.model, self.evaluation, "causal")
        steps, fields = ROWS[row]
        spec = None if fields is None else qf.QuantSpec(**fields)
        model = self.prepared(steps, spec)
        if spec is not None:
            qf.quantize_(model, spec, self.calibration[0])
            qf.calibrate_(model, self.calibration)
        found = evaluate(model, self.evaluation, "causal", self.reference).measured
        exact = self.reference.evaluation.measured["perplexity"]
        self.result["rows"][row] = {
            "perplexity": found["perplexity"],
            "ratio": found["perplexity"] / exact,
            "token_agreement": found["token_agreement"],
            "seconds": time.perf_counter() - begin,
        }

    def prepared(self, steps: Steps, spec: qf.QuantSpec | None) -> PreTrainedModel:
        model = copy.deepcopy(self.model)
        for step in steps:
            if step == "prefix":
                qf.add_prefix_(model, self.trials[-1].tokens)
            elif step == "rotation":
                qf.rotate_(model, self.calibration[0])
            else:
                migrate_(model, self.calibration, least_error_exponent(spec or qf.QuantSpec()))
        return model


def text_windows(model: str, text: Path, length: int, count: int | None) -> tuple[list[Batch], int]:
    """All windows of a text in batches, or so many evenly over it; and how many there are."""
    windows = sliding_windows(file_tokens(text, tokenizer_of(model)), length=length, stride=length - 1, batch_size=1)
    chosen = windows if count is None else windows[:: max(1, len(windows) // count)][:count]
    return stacked(chosen), len(windows)


def stacked(windows: list[Batch], size: int = 4) -> list[Batch]:
    """Windows of one length in batches; the last of a text is shorter and stands alone."""
    batches: list[Batch] = []
    for window in windows:
        last = batches[-1] if batches else None
        if last is None or len(last["input_ids"]) == size or last["input_ids"].shape[1] != window["input_ids"].shape[1]:
            batches.append(dict(window))
        else:
            batches[-1] = {name: torch.cat([last[name], window[name]]) for name in window}
    return batches


def table(result: dict[str, Any]) -> str:
    """Rows in their order."""
    lines = [["steps", "perplexity", "of fp32", "same next token"]]
    for name in ROWS:
        if row := result["rows"].get(name):
            share = row["token_agreement"]
            lines.append(
                [
                    name, numbers.metric(row["perplexity"], "perplexity"), numbers.two_places(row["ratio"]),
                    "" if share is None else numbers.percent(share, 1),
                ]
            )  # fmt: skip
    return markdown(lines)


if __name__ == "__main__":
    main()
