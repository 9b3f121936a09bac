"""Where an exported encoder spends its time in ONNX Runtime, by kind of work, in fp32 and in INT8.

    python -m experiments.int8.profile FOLDER [--batch 8] [--length 128] [--turns 20] [--keep]

FOLDER is written by `quietformer export minilm FOLDER --keep-fp32`. Each node counts with its fastest turn, on one thread.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from experiments.documents import markdown
from experiments.provenance import keep, keep_option_
from experiments.speed.turns import machine
from quietformer.results import numbers

GRAPHS = {"fp32": "model_fp32.onnx", "INT8": "model.onnx"}

KINDS = {
    "matrix products": ("MatMul", "FusedMatMul", "MatMulIntegerToFloat", "Gemm", "FusedGemm", "QGemm"),
    "GELU with its bias": ("BiasGelu", "Gelu", "FastGelu", "QuickGelu"),
    "biases and residual adds": ("Add", "Sum"),
    "norms, with residual adds where they are fused": ("LayerNormalization", "SkipLayerNormalization"),
    "softmax": ("Softmax",),
    "moving heads": ("Transpose",),
    "quantizing": ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"),
    "scaling and masks": ("Mul", "Div", "Where"),
}
"""Kinds of work, and the operators that do it; all others are the last row."""
REST = "the rest"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--turns", type=int, default=20)
    keep_option_(parser)
    asked = parser.parse_args()
    found = {name: profiled(asked.folder / file, asked) for name, file in GRAPHS.items()}
    result = {"machine": machine(), "batch": asked.batch, "length": asked.length, "milliseconds": found}
    print(table(result))
    if asked.keep:
        keep(__file__, result)


def profiled(graph: Path, asked: argparse.Namespace) -> dict[str, float]:
    """Milliseconds of each kind of work in one pass."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_profiling = True
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as place:
        options.profile_file_prefix = f"{place}/turns"
        session = onnxruntime.InferenceSession(str(graph), options)
        draw = np.random.default_rng(0)
        shape = asked.batch, asked.length
        feeds = {one.name: np.ones(shape, np.int64) for one in session.get_inputs()}
        feeds["input_ids"] = draw.integers(1000, 20_000, shape)  # words of a vocabulary of BERT's size
        if "token_type_ids" in feeds:
            feeds["token_type_ids"] *= 0
        for _ in range(asked.turns):
            session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    fastest: dict[tuple[str, str], float] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            key = event["args"]["op_name"], event["name"]
            fastest[key] = min(event["dur"] / 1000, fastest.get(key, float("inf")))
    spent: dict[str, float] = defaultdict(float)
    for (operator, _), milliseconds in fastest.items():
        spent[next((kind for kind, known in KINDS.items() if operator in known), REST)] += milliseconds
    return dict(spent)


def table(result: dict[str, Any]) -> str:
    spent = result["milliseconds"]
    rows = [
        [kind, *(numbers.one_place(spent[name].get(kind, 0.0)) for name in GRAPHS)]
        for kind in (*KINDS, REST)
        if any(kind in one for one in spent.values())
    ]
    whole = ["all", *(numbers.one_place(sum(spent[name].values())) for name in GRAPHS)]
    heads = [f"ms of a pass, {result['batch']} x {result['length']} tokens, 1 thread", *GRAPHS]
    return markdown([heads, *rows, whole])


if __name__ == "__main__":
    main()
