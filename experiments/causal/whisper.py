"""Whisper tiny.en as INT8 encoder and decoder: word error rate and latency, beside fp32 and ONNX Runtime's own tools.

    python -m experiments.causal.whisper make --model FOLDER --audio DIR --out DIR
    python -m experiments.causal.whisper naive --model FOLDER --audio DIR --out DIR
    python -m experiments.causal.whisper rate --model FOLDER --audio DIR --out DIR
    python -m experiments.causal.whisper time --model FOLDER --audio DIR --out DIR
    python -m experiments.causal.whisper keep --out DIR

`make` exports the model, calibrated on DIR/speech; `naive` quantizes the same fp32 graphs with ONNX Runtime's tools on the same
windows; `rate` lets each write what is said in DIR/speech-evaluation; `time` measures in turns. Each writes its part into --out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

import quietformer as qf
from experiments.documents import markdown
from experiments.provenance import keep, write_json
from experiments.speed.turns import machine
from quietformer.analysis.output_quality import word_error_rate
from quietformer.analysis.writing import first_tokens_of, read_by_decoder
from quietformer.architectures.forward import Batch
from quietformer.config.options.generate import GenerationOptions
from quietformer.data.audio_batches import audio_batches, folder_windows
from quietformer.data.first_tokens import FirstTokens
from quietformer.data.processors import feature_extractor_of
from quietformer.data.tokenizers import tokenizer_of
from quietformer.deployment.cache_names import PAST_PREFIX, PRESENT_PREFIX, STATES
from quietformer.deployment.merged_decoder import merged_decoder
from quietformer.deployment.onnx_graph import floating_graph
from quietformer.deployment.onnx_runtime import OnnxModel
from quietformer.deployment.onnxruntime_tools import dynamic_onnxruntime, static_onnxruntime
from quietformer.deployment.seq2seq_model import DECODED, DECODER, ENCODER, Seq2SeqModel, graph_path, open_graph
from quietformer.deployment.seq2seq_program import seq2seq_graphs
from quietformer.deployment.turns import take_turns
from quietformer.models.open_any import open_model

OURS = "Quietformer"
CALIBRATION, BATCH, ROOM = 2, 8, 96
PARTS = (ENCODER, "first", "further")
NAIVE: dict[str, Callable[[Path, Path, list[Batch]], object]] = {
    "ONNX Runtime dynamic": lambda fp32, out, _: dynamic_onnxruntime(fp32, out),
    "ONNX Runtime static": lambda fp32, out, batches: static_onnxruntime(fp32, out, batches),
    "ONNX Runtime static, products only, per channel": partial(static_onnxruntime, products_only=True),
}
FP32 = "fp32"
TIMED, NEW = 2, 32
"""So many recordings are timed, each until so many tokens are written."""


def make(arguments: argparse.Namespace) -> None:
    """With the search that `export` does by default; the fp32 graphs stay beside it."""
    report = qf.export(
        arguments.model, arguments.out / OURS, audio=arguments.audio / "speech", batch_size=BATCH, sequences=BATCH,
        eval_audio=arguments.audio / "speech-evaluation", calibration=CALIBRATION, keep_fp32=True, timed=False,
        search_seconds=arguments.search_seconds, overwrite=True,
    )  # fmt: skip
    for step in report.steps:
        print(step.name, step.what, step.error, step.kept, flush=True)
    print(report.fp32, report.runs[0].metrics, report.real, flush=True)


def windows(arguments: argparse.Namespace, folder: str, count: int, size: int) -> tuple[list[Batch], list[str]]:
    """Features, and what is said."""
    extractor = feature_extractor_of(str(arguments.model))
    found = folder_windows(arguments.audio / folder, extractor, count)
    return list(audio_batches(found, extractor, batch_size=size)), [one.transcript or "" for one in found]


# ---- ONNX Runtime's own tools
def naive(arguments: argparse.Namespace) -> None:
    model = open_model(str(arguments.model))
    batches = [read_by_decoder(model, batch) for batch in windows(arguments, "speech", CALIBRATION * BATCH, BATCH)[0]]
    graphs = seq2seq_graphs(model, batches[0])
    fp32 = arguments.out / "graphs"
    fp32.mkdir(parents=True, exist_ok=True)
    for part, graph in zip(PARTS, (graphs.encoder, graphs.first, graphs.further), strict=True):
        ir.save(floating_graph(graph), fp32 / f"{part}.onnx")
    read = read_by_parts(fp32, batches)
    for name, tool in NAIVE.items():
        out = arguments.out / name
        out.mkdir(exist_ok=True)
        for part in PARTS:
            tool(fp32 / f"{part}.onnx", out / f"{part}.onnx", read[part])
        ir.save(merged_decoder(*(ir.load(out / f"{part}.onnx") for part in PARTS[1:])), out / f"{DECODER}.onnx")
        print(name, "made", flush=True)


def read_by_parts(folder: Path, batches: list[Batch]) -> dict[str, list[Batch]]:
    """What each graph reads of the calibration data: all tokens at once, and their second half with a past."""
    models = {part: OnnxModel(folder / f"{part}.onnx") for part in PARTS}
    read: dict[str, list[Batch]] = {part: [] for part in PARTS}
    for batch in batches:
        for row in range(len(batch[DECODED])):
            features, tokens = batch["input_features"][row : row + 1], batch[DECODED][row : row + 1]
            states = models[ENCODER].run({"input_features": features.numpy()})
            half = tokens.shape[1] // 2
            session = models["first"].session
            names = [one.name for one in session.get_outputs()]
            found = dict(
                zip(names, session.run(None, {"input_ids": tokens[:, :half].numpy(), STATES: states}), strict=True)
            )
            past = {name.replace(PRESENT_PREFIX, PAST_PREFIX, 1): torch.from_numpy(one) for name, one in found.items()}
            past.pop("logits")
            given = {STATES: torch.from_numpy(states)}
            read[ENCODER].append({"input_features": features})
            read["first"].append({"input_ids": tokens, **given})
            read["further"].append({"input_ids": tokens[:, half:].contiguous(), **given, **past})
    return read


# ---- measuring
def opened(arguments: argparse.Namespace) -> dict[str, Seq2SeqModel]:
    paths = {FP32: graph_path(arguments.out / OURS, "_fp32")}
    paths |= {name: graph_path(arguments.out / name) for name in (*NAIVE, OURS)}
    found = {name: open_graph(path, threads=1) for name, path in paths.items()}
    return {name: model for name, model in found.items() if isinstance(model, Seq2SeqModel)}


def size(arguments: argparse.Namespace, name: str) -> float:
    folder, suffix = arguments.out / (OURS if name == FP32 else name), "_fp32" if name == FP32 else ""
    return sum((folder / f"{part}{suffix}.onnx").stat().st_size for part in (ENCODER, DECODER)) / 1e6


def rate(arguments: argparse.Namespace) -> None:
    """Word error rate, and in how many recordings the text is that of fp32."""
    batches, said = windows(arguments, "speech-evaluation", 1000, 1)
    tokenizer, first = tokenizer_of(str(arguments.model)), first_tokens_of(open_model(str(arguments.model)))
    rows: dict[str, Any] = {}
    exact: list[str] = []
    for name, model in opened(arguments).items():
        texts = [
            tokenizer.decode(
                model.written(batch, first, GenerationOptions(max_new_tokens=ROOM))[0], skip_special_tokens=True
            )
            for batch in batches
        ]
        exact = exact or texts
        same = sum(one == other for one, other in zip(texts, exact, strict=True))
        rows[name] = {"wer": word_error_rate(texts, said), "same_as_fp32": same, "mb": size(arguments, name)}
        print(name, rows[name], flush=True)
    words = sum(len(text.split()) for text in said)
    write_json(arguments.out / "rate.json", {"recordings": len(said), "words": words, "rows": rows})


def measure_time(arguments: argparse.Namespace) -> None:
    """One thread; the encoder by itself, and the whole text."""
    torch.set_num_threads(1)
    batches, _ = windows(arguments, "speech-evaluation", TIMED, 1)
    model = open_model(str(arguments.model))
    first = FirstTokens(prompt=first_tokens_of(model).prompt, ends=frozenset())
    rows: dict[str, dict[str, float]] = {}
    models = opened(arguments)
    encode = {name: partial(encoded, one, batches) for name, one in models.items()}
    whole = {name: partial(transcribed, one, batches, first) for name, one in models.items()}
    alone, both = (take_turns(runs, rounds=arguments.rounds) for runs in (encode, whole))
    for name in models:
        begin = min(alone[name]) / TIMED
        rows[name] = {
            "encoder_ms": 1e3 * begin, "encoder_median_ms": 1e3 * statistics.median(alone[name]) / TIMED,
            "token_ms": 1e3 * (min(both[name]) / TIMED - begin) / NEW, "whole_ms": 1e3 * min(both[name]) / TIMED,
        }  # fmt: skip
        print(name, rows[name], flush=True)
    write_json(arguments.out / "time.json", {"machine": machine(), "threads": 1, "tokens": NEW, "rows": rows})


def encoded(model: Seq2SeqModel, batches: list[Batch]) -> None:
    for batch in batches:
        model.encoder.run({"input_features": np.ascontiguousarray(batch["input_features"].numpy())})


def transcribed(model: Seq2SeqModel, batches: list[Batch], first: FirstTokens) -> None:
    for batch in batches:
        model.written(batch, first, GenerationOptions(max_new_tokens=NEW))


def keep_parts(arguments: argparse.Namespace) -> None:
    """The results of both steps as one file beside this script."""
    keep(__file__, {part: json.loads((arguments.out / f"{part}.json").read_text()) for part in ("rate", "time")})


# ---- for the documents
def table(result: dict[str, Any]) -> str:
    """Quality, size and speed of each."""
    told, timed = result["rate"], result["time"]["rows"]
    lines = [
        ["model", "word error rate", f"texts as in fp32, of {told['recordings']}", "encoder, ms", "token, ms", "MB"]
    ]
    for name, row in told["rows"].items():
        speed = [f"{timed[name][key]:.1f}" for key in ("encoder_ms", "token_ms")]
        lines.append([name, f"{100 * row['wer']:.1f} %", str(row["same_as_fp32"]), *speed, f"{row['mb']:.0f}"])
    return markdown(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["make", "naive", "rate", "time", "keep"])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--audio", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--search-seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    begin = time.perf_counter()
    steps = {"make": make, "naive": naive, "rate": rate, "time": measure_time, "keep": keep_parts}
    steps[arguments.step](arguments)
    print(f"{time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
