"""What attention costs without its weights being held: ours against torch's SDPA and against doing it step by step.

    python -m experiments.speed.attention [--threads N] [--lengths 128 512 ...] [--rounds N] [--keep]

float32, 64 features a head, tensors as transformers hands them over, the same for all. Time is that of the fastest turn, peers
taking turns; of one thread its processor time. Peak memory is that of a process of its own for each, one head, forward and
backward: what the process holds at most, from before the tensors were made, everything counted. "Step by step" is the plain
core, which is how clipped softmax is usually written.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import quietformer as qf
from experiments.provenance import keep, keep_option_
from experiments.speed.turns import fastest, machine
from quietformer.attention.call_settings import CoreOptions
from quietformer.attention.core import AttentionCore
from quietformer.attention.masks import late_mask
from quietformer.config.attention import HeadGeometry, NormalizerSpec

WIDTH, HEADS = 64, 8
TOKENS = 2048
"""Sequences are as many as make so many tokens, at least one."""
NORMALIZERS: dict[str, NormalizerSpec] = {
    "clipped softmax": qf.ClippedSoftmax(),
    "clipped softmax, gamma by row": qf.ClippedSoftmax(keys="row"),
    "softmax1": qf.Softmax1(),
    "learned sink": qf.LearnedSink(),
}
SDPA, PLAIN = "SDPA", "clipped softmax, step by step"
PLAIN_UP_TO = 4096
"""Beyond it the weights of eight heads fill the memory of a small machine."""


def tensors(length: int, heads: int, sequences: int) -> list[Tensor]:
    torch.manual_seed(0)
    made = [torch.randn(sequences, length, heads, WIDTH).transpose(1, 2) for _ in range(4)]
    return [tensor.requires_grad_(place < 3) for place, tensor in enumerate(made)]


def attention(name: str, heads: int, length: int, causal: bool) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """From (B, H, T, D) to (B, T, H, D)."""
    mask = late_mask(1, length, length) if causal else None
    if name == SDPA:
        return lambda q, k, v: nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=causal
        ).transpose(1, 2)  # fmt: skip
    spec = NORMALIZERS["clipped softmax" if name == PLAIN else name]
    core = AttentionCore(qf.AttentionSpec(normalizer=spec), HeadGeometry(heads, heads * WIDTH, WIDTH)).eval()
    options = CoreOptions(weights=name == PLAIN)
    context: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda q, k, v: core(q, k, v, mask, options=options)[0]  # noqa: E731
    return context


def times(length: int, causal: bool, rounds: int) -> dict[str, Any]:
    sequences = max(1, TOKENS // length)
    query, key, value, outer = tensors(length, HEADS, sequences)
    outer = outer.transpose(1, 2)
    names = [SDPA, *NORMALIZERS, *([PLAIN] if length <= PLAIN_UP_TO else [])]
    ways = {name: attention(name, HEADS, length, causal) for name in names}

    def forward(way: Callable[..., Tensor]) -> Callable[[], object]:
        def run() -> None:
            with torch.no_grad():
                way(query, key, value)

        return run

    def both(way: Callable[..., Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(way(query, key, value), (query, key, value), outer)

    found: dict[str, Any] = {"length": length, "sequences": sequences, "heads": HEADS, "causal": causal}
    for what, make in (("forward", forward), ("forward and backward", both)):
        clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
        seconds = fastest({name: make(way) for name, way in ways.items()}, rounds, clock)
        found[what] = {
            "sdpa_ms": 1e3 * seconds[SDPA],
            **{n: s / seconds[SDPA] for n, s in seconds.items() if n != SDPA},
        }
    return found


def resident(what: str) -> float:
    """MiB that this process holds, or held at most since the count was reset."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    found = re.search(rf"{what}:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


def one_peak(name: str, length: int, heads: int, causal: bool) -> float:
    few = tensors(256, heads, 1)
    way = attention(name, heads, 256, causal)
    torch.autograd.grad(
        way(*few[:3]), few[:3], few[3].transpose(1, 2)
    )  # what is loaded by the first call is not counted
    before = resident("VmRSS")
    query, key, value, outer = tensors(length, heads, 1)
    way = attention(name, heads, length, causal)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    torch.autograd.grad(way(query, key, value), (query, key, value), outer.transpose(1, 2))
    return resident("VmHWM") - before


def peaks(length: int, heads: int, causal: bool) -> dict[str, Any]:
    names = [SDPA, *NORMALIZERS, PLAIN]
    found = {}
    for name in names:
        words = [sys.executable, "-m", __spec__.name, "--peak", name, str(length), str(heads), str(int(causal))]
        found[name] = float(subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()[-1])
    ratios = {name: size / found[SDPA] for name, size in found.items() if name != SDPA}
    return {"length": length, "heads": heads, "causal": causal, "sdpa_mib": found[SDPA], **ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 256, 512, 1024, 2048, 4096, 8192])
    parser.add_argument("--memory", type=int, nargs="*", default=[2048, 8192])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=7)
    keep_option_(parser)
    parser.add_argument("--peak", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak:
        name, length, heads, causal = arguments.peak
        print(one_peak(name, int(length), int(heads), bool(int(causal))))
        return
    torch.set_num_threads(arguments.threads)
    results: dict[str, Any] = {
        "machine": machine(),
        "time": [],
        "memory": [],
    }
    print(json.dumps(results["machine"]))
    for causal in (False, True):
        for length in arguments.lengths:
            found = times(length, causal, arguments.rounds if length <= 2048 else 3)
            results["time"].append(found)
            for what in ("forward", "forward and backward"):
                row = dict(found[what])
                print(
                    f"T = {length}{', causal' if causal else ''}, {what}: SDPA {row.pop('sdpa_ms'):.1f} ms; "
                    + ", ".join(f"{name} {ratio:.2f}" for name, ratio in row.items()),
                    flush=True,
                )
    for causal in (False, True):
        for length in arguments.memory:
            found = peaks(length, 1, causal)
            results["memory"].append(found)
            print(f"peak memory, T = {length}: {found}", flush=True)
    if arguments.keep:
        keep(__file__, results)


if __name__ == "__main__":
    main()
