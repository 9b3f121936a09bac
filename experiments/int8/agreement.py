"""Whether real INT8 gives what the simulation gives, and whether the simulation agrees with itself any better.

    python -m experiments.int8.agreement FOLDER [--only minilm ...] [--sequences 64] [--search-seconds 300] [--keep | --add]

FOLDER is what `python -m experiments.int8.model_folders` writes. Each model is exported by default. The simulation in float32 is
compared with the same INT8 in both runtimes, in ONNX Runtime node by node as the file is written, and with the simulation in
float64, which differs by rounding alone. Cosines are those of what the model is used for, and of single tokens or patches. By
layer it says how far float32 and float64 are apart. With --add, models that were measured before stay in the kept result.
"""

from __future__ import annotations

import argparse
import copy
import json
import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from experiments.documents import markdown
from experiments.int8.compare import DATA
from experiments.provenance import keep, keep_option_, made_by
from experiments.speed.turns import machine
from quietformer.analysis.output_quality import row_cosines
from quietformer.architectures.forward import Batch, model_inputs, token_mask, token_rows
from quietformer.config.options.export import ExportOptions, OnnxOptions
from quietformer.deployment.onnx_export import export_onnx
from quietformer.deployment.onnx_runtime import OnnxModel
from quietformer.deployment.runtimes import F32, runtime_model
from quietformer.deployment.torch_program import output_name
from quietformer.models.pooling import pooling_of
from quietformer.progress import SILENT
from quietformer.quant.calibration import full_precision
from quietformer.workflows.open_once import open_once
from quietformer.workflows.simulation import simulate_best

RESULT = Path(__file__).with_suffix(".json")

MODELS = [name for name in DATA if "@" not in name]

ORT, NODES, OPENVINO, DOUBLE, FP32 = (
    "ONNX Runtime",
    "ONNX Runtime, node by node",
    "OpenVINO, f32",
    "simulation in float64",
    "the model in fp32",
)

USED: dict[str, str] = {"logits": "logits", "pixel_values": "class token", "input_features": "encoder states"}
"""What a model is used for, by its output or by what it takes; else one embedding a text."""

Way = Callable[[Batch], Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the model folders are")
    parser.add_argument("--only", nargs="+", default=MODELS, metavar="MODEL", help="these models instead of all")
    parser.add_argument("--sequences", type=int, default=64, help="texts, images or recordings to compare on")
    parser.add_argument("--search-seconds", type=float, default=300.0, help="as `export` takes it")
    parser.add_argument("--add", action="store_true", help="keep the result, and in it the models measured before")
    keep_option_(parser)
    given = parser.parse_args()
    models = json.loads(RESULT.read_text(encoding="utf-8"))["models"] if given.add and RESULT.is_file() else {}
    for name in given.only:
        words = shlex.split(DATA[name].format(data=given.folder / "data"))
        fields: dict[str, Any] = {
            flag.removeprefix("--").replace("-", "_"): Path(value)
            for flag, value in zip(words[::2], words[1::2], strict=True)
        }
        fields |= {"sequences": given.sequences, "search_seconds": given.search_seconds}
        models[name] = measure(given.folder / name, ExportOptions(**fields)) | {"commit": made_by(__file__)["commit"]}
        print(table({"models": {name: models[name]}}), layers({"models": {name: models[name]}}), sep="\n", flush=True)
        if given.keep or given.add:
            keep(__file__, {"machine": machine(), "models": {one: models[one] for one in MODELS if one in models}})


def measure(place: Path, options: ExportOptions) -> dict[str, Any]:
    """One model: exported, and run in every way on what nothing was calibrated on."""
    found, _ = simulate_best(open_once(place, options, SILENT), options, SILENT)
    model, batches = found.opened.model, found.data.evaluation
    output = output_name(model, model_inputs(batches[0]))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "int8"
        export_onnx(model, folder, batches, options=OnnxOptions(timed=False))
        ways = {
            ORT: _named(runtime_model("onnxruntime", folder), output),
            NODES: _named(OnnxModel(folder / "model.onnx", optimized=False), output),
            OPENVINO: _named(runtime_model("openvino", folder, precision=F32), output),
        }
        return _compared(model, output, batches, ways)


def _named(runtime: Callable[[Batch], dict[str, Tensor]], output: str) -> Way:
    return lambda batch: runtime(batch)[output]


def _compared(model: PreTrainedModel, output: str, batches: list[Batch], ways: dict[str, Way]) -> dict[str, Any]:
    """Cosines to the simulation in float32, of outputs and of tokens, and errors between float32 and float64 by layer."""
    double, used = copy.deepcopy(model).double(), _used(output, batches[0])
    outputs: dict[str, list[Tensor]] = {}
    tokens: dict[str, list[Tensor]] = {}
    errors: list[list[float]] = []
    for batch in batches:
        ours, states = _states(model, batch, output)
        wide, wide_states = _states(double, batch, output)
        with full_precision(model):
            exact, _ = _states(model, batch, output)
        for name, theirs in {name: way(batch) for name, way in ways.items()} | {DOUBLE: wide, FP32: exact}.items():
            one, other = (_output(model, batch, one, used) for one in (ours, theirs))
            outputs.setdefault(name, []).append(row_cosines(one, other))
            tokens.setdefault(name, []).append(row_cosines(token_rows(batch, ours), token_rows(batch, theirs)))
        errors.append([_error(batch, *pair) for pair in zip(states, wide_states, strict=True)])
    return {
        "output": used,
        "sequences": sum(len(next(iter(batch.values()))) for batch in batches),
        "outputs": {name: float(torch.cat(found).mean()) for name, found in outputs.items()},
        "tokens": {name: float(torch.cat(found).mean()) for name, found in tokens.items()},
        "by_layer": torch.tensor(errors, dtype=torch.float64).mean(0).tolist(),
    }


def _used(output: str, batch: Batch) -> str:
    return next((USED[name] for name in (output, *batch) if name in USED), "embedding")


def _states(model: PreTrainedModel, batch: Batch, output: str) -> tuple[Tensor, list[Tensor]]:
    """The output, and what every layer gives, in float64."""
    kind = next(model.parameters()).dtype
    given = {name: one.to(kind) if one.is_floating_point() else one for name, one in model_inputs(batch).items()}
    with torch.no_grad():
        result = model(**given, output_hidden_states=True)
    found: Tensor = getattr(result, output)
    return found.double(), [states.double() for states in result.hidden_states]


def _output(model: PreTrainedModel, batch: Batch, found: Tensor, used: str) -> Tensor:
    """What the model is used for, one row each."""
    if used == "class token":
        return found[:, 0]
    if used == "embedding":
        return pooling_of(model)(found.double(), token_mask(batch, found.shape[1]))
    return token_rows(batch, found)


def _error(batch: Batch, one: Tensor, other: Tensor) -> float:
    return float((1 - row_cosines(token_rows(batch, one), token_rows(batch, other))).mean())


def table(result: dict[str, Any]) -> str:
    """The cosines of docs/quantize.md."""
    ways = (ORT, NODES, OPENVINO, DOUBLE, FP32)
    lines: list[list[object]] = [["cosine to the simulation", *ways]]
    for name, found in result["models"].items():
        kinds = [("outputs", found["output"])]
        if found["outputs"] != found["tokens"]:
            kinds.append(("tokens", "tokens" if found["output"] == "embedding" else "all tokens"))
        lines += [[f"{name}, {what}", *(f"{found[kind][way]:.5f}" for way in ways)] for kind, what in kinds]
    return markdown(lines)


def layers(result: dict[str, Any]) -> str:
    """How the difference of float32 and float64 grows from the embeddings to the last layer."""
    lines: list[list[object]] = [
        ["1 - cosine of a token, float32 to float64", "before layer 1", "after it", "half way", "at the end"]
    ]
    for name, found in result["models"].items():
        errors = found["by_layer"]
        lines.append([name, *(f"{max(0.0, errors[place]):.0e}" for place in (0, 1, len(errors) // 2, -1))])
    return markdown(lines)


if __name__ == "__main__":
    main()
