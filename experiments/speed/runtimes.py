"""MiniLM exported: fp32 against INT8 in ONNX Runtime, and the same files in OpenVINO.

    python -m experiments.speed.runtimes [--keep]

One thread, texts of 16 and 128 tokens, one and eight at a time; wall time of the fastest turn, all taking turns. Also how
long the export takes and how long one pass of the model in torch.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import quietformer as qf
from experiments.provenance import keep, keep_option_
from experiments.speed.turns import fastest, machine
from quietformer.config.quantization import QuantSpec
from quietformer.deployment.onnx_export import FLOATING, export_onnx
from quietformer.deployment.onnx_runtime import OnnxModel
from quietformer.deployment.openvino_runtime import OpenVinoModel
from quietformer.deployment.runtime_model import RuntimeModel
from quietformer.deployment.usage_note import INTEGER
from quietformer.models.open_any import open_model

SHAPES = [(1, 16), (1, 128), (8, 128)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    keep_option_(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = open_model("minilm")
    shipped = open_model("minilm")

    def batch(sequences: int, length: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(1000, 30000, (sequences, length))
        return {
            "input_ids": tokens,
            "attention_mask": torch.ones_like(tokens),
            "token_type_ids": torch.zeros_like(tokens),
        }

    calibration = [batch(8, 64) for _ in range(4)]
    qf.quantize_(model, QuantSpec(per_channel=True), calibration[0])
    qf.calibrate_(model, calibration)
    figures: dict[str, Any] = {"machine": machine(), "rows": []}
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        export_onnx(
            model, folder, calibration[:1], options=qf.OnnxOptions(keep_fp32=True, timed=False, runtime="onnxruntime")
        )
        figures["export_seconds"] = time.perf_counter() - start
        files = {"fp32": Path(folder) / FLOATING, "INT8": Path(folder) / INTEGER}
        figures["machine"] |= {name: version(name) for name in ("onnxruntime", "openvino")}
        runtimes: dict[str, RuntimeModel] = {
            f"onnxruntime {kind}": OnnxModel(path, threads=1) for kind, path in files.items()
        }
        runtimes |= {f"OpenVINO {kind}": OpenVinoModel(path, threads=1) for kind, path in files.items()}
        for sequences, length in SHAPES:
            given = batch(sequences, length)

            def in_torch(given: dict[str, torch.Tensor] = given) -> None:
                with torch.no_grad():
                    shipped(**given)

            peers: dict[str, Callable[[], object]] = {"torch fp32": in_torch}
            for name, runtime in runtimes.items():
                peers[name] = partial(runtime.run, runtime.feeds(given))
            seconds = fastest(peers, arguments.rounds)
            row = {"sequences": sequences, "length": length, "milliseconds": {n: 1e3 * s for n, s in seconds.items()}}
            figures["rows"].append(row)
            base = seconds["onnxruntime fp32"]
            print(
                f"{sequences} x {length}: onnxruntime fp32 {1e3 * base:.1f} ms; "
                + ", ".join(f"{name} {s / base:.2f}" for name, s in seconds.items() if name != "onnxruntime fp32"),
                flush=True,
            )
    print(
        f"export: {figures['export_seconds']:.1f} s, {figures['export_seconds'] / seconds['torch fp32']:.0f} passes in torch"
    )
    if arguments.keep:
        keep(__file__, figures)


if __name__ == "__main__":
    main()
