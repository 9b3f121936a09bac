"""SmolLM2-135M as an INT8 graph that generates: the same tokens as the simulation, and how fast.

    python -m experiments.causal.generate make --model FOLDER --texts FILE --out DIR
    python -m experiments.causal.generate tokens --model FOLDER --texts FILE --out DIR
    python -m experiments.causal.generate time --model FOLDER --texts FILE --out DIR
    python -m experiments.causal.generate keep --model FOLDER --texts FILE --out DIR

`make` exports each variant; `tokens` lets the simulation and the graph continue 20 prompts by 64 tokens, greedily, and looks at
every place where they part; `time` measures prefill of 128 tokens, decoding of 64, and memory, in turns. Each writes its part
into DIR; `keep` puts the parts together beside this script.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel

import quietformer as qf
from experiments.documents import markdown
from experiments.provenance import keep, write_json
from experiments.speed.turns import machine
from quietformer.config.options.generate import GenerationOptions
from quietformer.config.quantization import QuantSpec
from quietformer.deployment.generation import Generator
from quietformer.deployment.memory_probe import memory_of
from quietformer.deployment.onnx_export import FLOATING, export_onnx
from quietformer.deployment.onnx_runtime import OnnxModel
from quietformer.deployment.runtime_model import RuntimeModel
from quietformer.deployment.turns import take_turns
from quietformer.deployment.usage_note import INTEGER
from quietformer.models.open_any import open_model
from quietformer.quant.calibration import full_precision
from quietformer.transforms.prefix import add_prefix_

VARIANTS = {
    "static": QuantSpec(placement="linear", per_channel=True, head=True),
    "per token": QuantSpec(placement="linear", per_channel=True, head=True, granularity="token"),
}
OPTIONS = qf.OnnxOptions(timed=False, keep_fp32=True, runtime="onnxruntime", weight_type="int8")
PROMPTS, PROMPT, NEW = 20, 24, 64
PREFILL, DECODED = 128, 64
CALIBRATION, LENGTH, BATCH = 2, 128, 8
FIRST = "<|im_start|>"
"""The beginning of text of SmolLM2; it and a newline are the prefix."""


def quantized(folder: Path, spec: QuantSpec, rows: list[list[int]]) -> PreTrainedModel:
    """With the prefix, calibrated; always the same."""
    torch.manual_seed(0)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), open_model(folder)
    newline = tokenizer("\n")["input_ids"][-1]
    add_prefix_(model, [tokenizer.convert_tokens_to_ids(FIRST), newline])
    batches = [{"input_ids": torch.tensor(rows[start : start + BATCH])} for start in range(0, len(rows), BATCH)]
    qf.quantize_(model, spec, batches[0])
    qf.calibrate_(model, batches)
    return model


def pieces(tokenizer: Any, texts: Path, length: int, count: int, skip: int = 0) -> list[list[int]]:
    """Beginnings of paragraphs."""
    found: list[list[int]] = []
    for line in texts.read_text("utf-8").splitlines():
        tokens = tokenizer(line.strip())["input_ids"] if len(line) > 4 * length else []
        if len(tokens) >= length:
            found.append(tokens[:length])
        if len(found) == skip + count:
            break
    return found[skip:]


def make(arguments: argparse.Namespace) -> None:
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    rows = pieces(tokenizer, arguments.texts, LENGTH, CALIBRATION * BATCH, skip=PROMPTS)
    for name in arguments.variants:
        model = quantized(arguments.model, VARIANTS[name], rows)
        batch = {"input_ids": torch.tensor(rows[:2]), "attention_mask": torch.ones(2, LENGTH, dtype=torch.int64)}
        made = export_onnx(model, arguments.out / name, [batch], options=OPTIONS)
        print(name, made.fp32_difference, made.bytes, [str(one.agreement) for one in made.runtimes], flush=True)


# ---- the same tokens
def compare_tokens(arguments: argparse.Namespace) -> None:
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    prompts = torch.tensor(pieces(tokenizer, arguments.texts, PROMPT, PROMPTS))
    rows = pieces(tokenizer, arguments.texts, LENGTH, CALIBRATION * BATCH, skip=PROMPTS)
    result: dict[str, Any] = {"prompts": PROMPTS, "prompt_tokens": PROMPT, "new_tokens": NEW, "variants": {}}
    for name in arguments.variants:
        model = quantized(arguments.model, VARIANTS[name], rows)
        simulated = by_torch(model, prompts)
        found = compared(model, OnnxModel(arguments.out / name / INTEGER), prompts, simulated)
        with full_precision(model):
            fp32 = by_torch(model, prompts)
        found["fp32_equal_texts"] = equal_texts(fp32, simulated)
        result["variants"][name] = found
        print(name, json.dumps(found), flush=True)
        write_json(arguments.out / "tokens.json", result)


def by_torch(model: PreTrainedModel, prompts: Tensor) -> Tensor:
    """All 64 tokens of every prompt, whatever ends a text."""
    with torch.no_grad():
        generate: Any = model.generate
        made: Tensor = generate(
            input_ids=prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=NEW, min_new_tokens=NEW,
            do_sample=False, eos_token_id=None,
        )  # fmt: skip
    return made[:, prompts.shape[1] :]


def compared(model: PreTrainedModel, runtime: RuntimeModel, prompts: Tensor, simulated: Tensor) -> dict[str, Any]:
    """How many texts are the same, and for others the place where they part and how near a tie it is."""
    ones = np.ones(prompts.shape, np.int64)
    generator = Generator(runtime, (), GenerationOptions(max_new_tokens=NEW))
    written = torch.tensor(generator.continued(prompts.numpy(), ones))
    with torch.no_grad():
        logits = model(input_ids=torch.cat([prompts, simulated], 1)).logits[:, prompts.shape[1] - 1 : -1]
    best = logits.topk(2).values
    margins = best[..., 0] - best[..., 1]
    parted = []
    for row in range(len(prompts)):
        differ = (written[row] != simulated[row]).nonzero()
        if len(differ):
            place = int(differ[0])
            ours, theirs = simulated[row, place], written[row, place]
            gap = float(logits[row, place, ours] - logits[row, place, theirs])
            rank = int((logits[row, place] > logits[row, place, theirs]).sum())
            parted.append({"prompt": row, "token": place, "gap": gap, "rank": rank})
    before = sum(one["token"] for one in parted) + NEW * (len(prompts) - len(parted))
    return {
        "equal_texts": equal_texts(written, simulated),
        "equal_tokens_before_parting": before,
        "compared_tokens": before + len(parted),
        "parted": parted,
        "median_margin": float(margins.median()),
    }


def equal_texts(one: Tensor, other: Tensor) -> int:
    return int((one == other).all(1).sum())


# ---- how fast
def measure_time(arguments: argparse.Namespace) -> None:
    threads = arguments.threads
    torch.set_num_threads(threads)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    prompt = np.array(pieces(tokenizer, arguments.texts, PREFILL, 1))
    files = {"ONNX Runtime fp32": arguments.out / arguments.variants[0] / FLOATING}
    files |= {f"ONNX Runtime INT8, {name}": arguments.out / name / INTEGER for name in arguments.variants}
    models = {name: OnnxModel(file, threads=threads) for name, file in files.items()}
    plain = open_model(arguments.model)
    prefill = {name: partial(generated, one, prompt, 1) for name, one in models.items()}
    whole = {name: partial(generated, one, prompt, 1 + DECODED) for name, one in models.items()}
    prefill["torch fp32"] = partial(in_torch, plain, prompt, 1)
    whole["torch fp32"] = partial(in_torch, plain, prompt, 1 + DECODED)
    first = take_turns(prefill, rounds=arguments.rounds)
    both = take_turns(whole, rounds=arguments.rounds)
    rows: dict[str, Any] = {}
    for name in prefill:
        decoding = min(both[name]) - min(first[name])
        rows[name] = {
            "prefill_ms": 1e3 * min(first[name]), "prefill_median_ms": 1e3 * statistics.median(first[name]),
            "prefill_tokens_per_second": PREFILL / min(first[name]), "decode_tokens_per_second": DECODED / decoding,
        }  # fmt: skip
        print(name, rows[name], flush=True)
    for title, file in files.items():
        feeds = models[title].feeds({"input_ids": torch.from_numpy(prompt)})
        rows[title]["peak_mb"] = (memory_of("onnxruntime", file, feeds, threads) or 0) / 1e6
        rows[title]["file_mb"] = file.stat().st_size / 1e6
    result = {"machine": machine(), "threads": threads, "prefill": PREFILL, "decoded": DECODED, "rows": rows}
    write_json(arguments.out / "time.json", result)


def generated(model: RuntimeModel, prompt: np.ndarray[Any, Any], count: int) -> None:
    Generator(model, (), GenerationOptions(max_new_tokens=count)).continued(prompt, np.ones_like(prompt))


def in_torch(model: PreTrainedModel, prompt: np.ndarray[Any, Any], count: int) -> None:
    """A plain loop with a cache, without what `generate` adds."""
    tokens, past = torch.from_numpy(prompt), None
    with torch.no_grad():
        for _ in range(count):
            made: Any = model(input_ids=tokens, past_key_values=past, use_cache=True, logits_to_keep=1)
            tokens, past = made.logits[:, -1:].argmax(-1), made.past_key_values


def keep_parts(arguments: argparse.Namespace) -> None:
    """The results of both steps as one file beside this script."""
    keep(__file__, {part: json.loads((arguments.out / f"{part}.json").read_text()) for part in ("tokens", "time")})


# ---- for the documents
def tokens_table(result: dict[str, Any]) -> str:
    """How many texts are the same, and how near the others were to a tie where they part."""
    told = result["tokens"]
    lines = [
        [
            "activations",
            f"equal texts of {told['prompts']}",
            "parted where the two were",
            "margin elsewhere",
            "equal to fp32",
        ]
    ]
    for name, found in told["variants"].items():
        gaps = sorted(one["gap"] for one in found["parted"])
        apart = f"{gaps[0]:.3f} to {gaps[-1]:.3f} apart" if gaps else ""
        lines.append([
            name, str(found["equal_texts"]), apart, f"{found['median_margin']:.2f}", str(found["fp32_equal_texts"])
        ])  # fmt: skip
    return markdown(lines)


def time_table(result: dict[str, Any]) -> str:
    """Tokens a second and memory, one thread."""
    rows = result["time"]["rows"]
    lines = [["model", "prefill, tokens/s", "decode, tokens/s", "peak memory, MB", "file, MB"]]
    for name, row in rows.items():
        memory = [f"{row[key]:.0f}" if row.get(key) else "" for key in ("peak_mb", "file_mb")]
        lines.append(
            [name, f"{row['prefill_tokens_per_second']:.0f}", f"{row['decode_tokens_per_second']:.1f}", *memory]
        )
    return markdown(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["make", "tokens", "time", "keep"])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    begin = time.perf_counter()
    {"make": make, "tokens": compare_tokens, "time": measure_time, "keep": keep_parts}[arguments.step](arguments)
    print(f"{time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
