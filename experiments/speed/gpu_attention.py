"""Times and peak memory of the Triton kernels on a GPU, beside torch's SDPA and FlexAttention; prints a line per case.

    python -m experiments.speed.gpu_attention [--lengths 1024 4096] [--width 64] [--dtype bfloat16]

SDPA computes plain softmax: the same products with another weight function. Times are medians of 20 after 5 to warm up. It
was not run by us, who have no GPU; `--device cpu` with TRITON_INTERPRET=1 and lengths of a few tens tries the script only.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from torch import Tensor

from quietformer.attention.call_settings import FusedOptions
from quietformer.attention.kernels.blocked import Clipping
from quietformer.attention.kernels.flex import flex_clipped_attention
from quietformer.attention.kernels.fused import Beside, fused_attention
from quietformer.attention.kernels.row_weights import RowWeights
from quietformer.attention.masks import Causal

TOKENS, HEADS = 16_384, 16
WEIGHTS = {
    "clipped": RowWeights("clipped", low=-1e-4),
    "softmax1": RowWeights("softmax", sink=0.0),
    "softpick": RowWeights("softpick"),
    "sigmoid": RowWeights("sigmoid", low=-8.0),
}


def peers(length: int, width: int, *, causal: bool, device: str) -> dict[str, Callable[..., Tensor]]:
    """What computes a context from queries, keys and values (B, H, T, D)."""
    mask = Causal(length, length, device=device) if causal else None
    options = FusedOptions(width**-0.5)
    found: dict[str, Callable[..., Tensor]] = {
        "sdpa": partial(torch.nn.functional.scaled_dot_product_attention, is_causal=causal)
    }
    if device != "cpu":  # FlexAttention has no backward pass there
        found["clipped, FlexAttention"] = partial(
            flex_clipped_attention, clipping=Clipping(-1e-4), scaling=options.scaling, mask=mask
        )
    for name, weights in WEIGHTS.items():
        found[name] = partial(fused_attention, beside=Beside(mask), weights=weights, options=options)
    return found


def milliseconds(work: Callable[[], object], device: str, rounds: int) -> float:
    times = []
    for _ in range(rounds + 5):
        if device != "cpu":
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        if device != "cpu":
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return median(times[5:])


def line(name: str, attend: Callable[..., Tensor], tensors: list[Tensor], rounds: int) -> str:
    device = tensors[0].device.type

    def both() -> None:
        torch.autograd.grad(attend(*tensors).sum(), tensors)

    with torch.no_grad():
        forward = milliseconds(lambda: attend(*tensors), device, rounds)
    memory = 0.0
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        both()
        memory = (torch.cuda.max_memory_allocated() - before) / 2**20
    whole = milliseconds(both, device, rounds)
    return f"  {name:24}{forward:10.3f} ms forward{whole:10.3f} ms with backward{memory:10.0f} MiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 8192, 16_384])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    print(torch.cuda.get_device_name() if given.device == "cuda" else "no GPU: these times mean nothing")
    for length in given.lengths:
        batch, heads = (max(1, TOKENS // length), HEADS) if given.device == "cuda" else (1, 2)
        for causal in (False, True):
            print(f"T = {length}, {batch} sequences, {heads} heads, {'causal' if causal else 'no mask'}")
            shape = (batch, length, heads, given.width)
            tensors = [
                torch.randn(shape, device=given.device, dtype=getattr(torch, given.dtype))
                .transpose(1, 2)
                .requires_grad_()
                for _ in range(3)
            ]
            for name, attend in peers(length, given.width, causal=causal, device=given.device).items():
                print(line(name, attend, tensors, given.rounds), flush=True)


if __name__ == "__main__":
    main()
