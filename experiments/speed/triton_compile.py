"""What compilers say about the Triton kernels for GPUs that are not here, and the least time these GPUs can take for them.

    python -m experiments.speed.triton_compile [--keep]

The kernels are compiled as a call on such a GPU would compile them. Registers, shared memory and spilled bytes are read from
the result, and the instructions of the inner loops from its disassembly. The least time is the largest of four: matrix
products at the GPU's peak, exponentials at the rate of its special function units, instructions at four per cycle and
multiprocessor, and inputs and outputs at the bandwidth of its memory. Nothing is run: latencies, waiting and clocks below the
boost clock come on top.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from typing import Any
from unittest.mock import patch

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from experiments.provenance import keep, keep_option_
from quietformer.attention.kernels import triton_backward, triton_forward
from quietformer.attention.kernels.triton_launch import Call, run_backward, run_forward
from quietformer.attention.kernels.triton_tiles import Form

BATCH, HEADS, LENGTH = 4, 16, 4096
KINDS = ("clipped", "softmax", "softpick", "sigmoid")
TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.int64: "i64", torch.uint8: "u8"}
PRODUCTS = {"row_statistics": 1, "context_of_rows": 2, "row_slopes": 2, "gradients": 7}
"""Matrix products of T x T x D that each kernel computes; `gradients` has four for keys and values, three for queries."""


@dataclass(frozen=True)
class Gpu:
    """Data sheet of a GPU: https://www.nvidia.com/en-us/data-center/a100, .../h100 (SXM) and their architecture papers."""

    name: str
    capability: int
    processors: int
    gigahertz: float  # boost
    teraflops: float  # bf16 products summed in fp32, dense
    gigabytes: float  # of memory bandwidth, a second
    shared: int  # bytes of shared memory of a multiprocessor


GPUS = (Gpu("A100", 80, 108, 1.41, 312, 2039, 167_936), Gpu("H100", 90, 132, 1.83, 989, 3350, 233_472))


@dataclass
class Launch:
    """One launch of a kernel, recorded and not run."""

    kernel: Any
    programs: int
    arguments: dict[str, Any]
    how: dict[str, int]

    @property
    def name(self) -> str:
        return str(self.kernel.__name__)


def launches(call: Call) -> list[Launch]:
    """What a forward and a backward pass launch, in order; the tensors have no memory."""
    found: list[Launch] = []

    class Recorder:
        def __init__(self, kernel: Any) -> None:
            self.kernel = kernel

        def __getitem__(self, grid: tuple[int]) -> Any:
            def record(*given: Any, **how: int) -> None:
                names = self.kernel.arg_names
                found.append(Launch(self.kernel, grid[0], dict(zip(names, given, strict=True)), how))

            return record

    places = ((triton_forward, "row_statistics"), (triton_forward, "context_of_rows"),
              (triton_backward, "row_slopes"), (triton_backward, "gradients"))  # fmt: skip
    patches = [patch.object(module, name, Recorder(getattr(module, name))) for module, name in places]
    for each in patches:
        each.start()
    try:
        context, lse = run_forward(call)
        run_backward(call, (context, lse, torch.empty_like(context)), [True] * 3)
    finally:
        for each in patches:
            each.stop()
    return found


def source(launch: Launch) -> ASTSource:
    """A kernel with the types of its arguments, specialised as Triton does when it launches one."""
    constants: dict[tuple[int, ...], Any] = {}
    aligned: dict[tuple[int, ...], Any] = {}

    def kind_of(x: Any, path: tuple[int, ...]) -> Any:
        if isinstance(x, tuple) and not isinstance(x, Form):
            return type(x)(*(kind_of(part, (*path, place)) for place, part in enumerate(x)))
        if isinstance(x, torch.Tensor):
            aligned[path] = [["tt.divisibility", 16]]
            return "*" + TYPES[x.dtype]
        if isinstance(x, float):
            return "fp32"
        if isinstance(x, int) and not isinstance(x, bool) and x != 1:
            if x % 16 == 0:
                aligned[path] = [["tt.divisibility", 16]]
            return "i32" if abs(x) < 2**31 else "i64"
        constants[path] = x
        return "constexpr"

    signature = {name: kind_of(x, (place,)) for place, (name, x) in enumerate(launch.arguments.items())}
    return ASTSource(launch.kernel, signature, constexprs=constants, attrs=aligned)


def compiled(launch: Launch, capability: int) -> dict[str, Any]:
    """Registers, shared memory, spilled bytes, and the instructions of the loops with matrix products."""
    found = triton.compile(source(launch), target=GPUTarget("cuda", capability, 32), options=launch.how)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(found.asm["cubin"])
        file.flush()
        usage, code = (_cuobjdump(option, file.name) for option in ("--dump-resource-usage", "-sass"))
    read = {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    return {
        "registers": read["REG"],
        "shared": found.metadata.shared,
        "spilled": read["STACK"] + read["LOCAL"],
        "warps": launch.how["num_warps"],
        "loops": [asdict(loop) for loop in loops(code)],
    }


def _cuobjdump(option: str, file: str) -> str:
    program = triton.knobs.nvidia.cuobjdump.path
    return subprocess.run([program, option, file], capture_output=True, text=True, check=True).stdout


@dataclass(frozen=True)
class Loop:
    """An inner loop of a kernel: instructions of one warp in one turn."""

    instructions: int
    exponentials: int
    products: int


def loops(code: str) -> list[Loop]:
    """The innermost loops that have matrix products."""
    lines = [(int(place, 16), text) for place, text in re.findall(r"/\*([0-9a-f]{4,})\*/\s+(\S[^;]*);", code)]
    spans = []
    for place, text in lines:
        jump = re.search(r"\bBRA\b.*?(0x[0-9a-f]+)", text)
        if jump and (begin := int(jump[1], 16)) < place:
            spans.append((begin, place))
    inner = [
        one for one in spans if not any(one != other and one[0] <= other[0] and other[1] <= one[1] for other in spans)
    ]
    found = []
    for begin, end in inner:
        body = [text for place, text in lines if begin <= place <= end]
        products = sum(bool(re.search(r"\b[HW]?G?MMA\b", text)) for text in body)
        if products:
            exponentials = sum("MUFU" in text for text in body)
            found.append(Loop(len(body), exponentials, products))
    return found


def blocks_at_once(result: dict[str, Any], gpu: Gpu) -> int:
    """How many blocks of threads a multiprocessor holds at once."""
    threads = 32 * result["warps"]
    registers = -(-result["registers"] // 8) * 8 * threads
    shared = result["shared"] + 1024  # what the system takes of each block
    return min(65_536 // registers, gpu.shared // shared, 2048 // threads)


def least_milliseconds(launch: Launch, result: dict[str, Any], gpu: Gpu) -> dict[str, float]:
    """The four limits of a launch without masks."""
    form = launch.arguments["form"]
    queries, keys = (-(-LENGTH // size) for size in (form.block_queries, form.block_keys))
    turns = BATCH * HEADS * queries * keys * result["warps"]
    # In `gradients` half of the programs go through one loop and half through the other, every tile once in each.
    instructions, exponentials = (
        sum(loop[name] for loop in result["loops"]) for name in ("instructions", "exponentials")
    )
    cycles = gpu.processors * gpu.gigahertz * 1e9
    one = BATCH * HEADS * LENGTH * form.width
    tensors = {"row_statistics": 2, "context_of_rows": 4, "row_slopes": 5, "gradients": 7}[launch.name]
    kinds = {"row_slopes": 2 if form.kind == "clipped" else 0}
    return {
        "products": kinds.get(launch.name, PRODUCTS[launch.name]) * 2 * one * LENGTH / (gpu.teraflops * 1e9),
        "exponentials": turns * exponentials * 32 / 16 / cycles * 1e3,
        "instructions": turns * instructions / 4 / cycles * 1e3,
        "memory": tensors * one * 2 / (gpu.gigabytes * 1e6),
    }


def call_for(kind: str, width: int, dtype: torch.dtype) -> Call:
    """Attention without masks, on tensors without memory."""
    with torch.device("meta"):
        rows = [torch.empty(BATCH, LENGTH, HEADS, width, dtype=dtype).transpose(1, 2) for _ in range(3)]
        low, sink = torch.empty(1, 1, 1, 1), torch.empty(HEADS) if kind == "softmax" else None
    return Call(*rows, low, sink, *[None] * 5, kind, [width**-0.5, 1.0, 0.0], [])


def measured() -> list[dict[str, Any]]:
    rows = []
    for gpu in GPUS:
        others = [(kind, 64) for kind in KINDS[1:]] if gpu is GPUS[-1] else []
        for kind, width in [("clipped", 64), ("clipped", 128), *others]:
            for launch in launches(call_for(kind, width, torch.bfloat16)):
                result = compiled(launch, gpu.capability)
                row = {"gpu": gpu.name, "kind": kind, "width": width, "kernel": launch.name} | result
                row |= {"blocks": blocks_at_once(result, gpu), "least_ms": least_milliseconds(launch, result, gpu)}
                rows.append(row)
                limit = max(row["least_ms"], key=row["least_ms"].get)
                print(*(row[name] for name in ("gpu", "kind", "width", "kernel", "registers", "shared", "spilled", "blocks")),
                      f"{row['least_ms'][limit]:.2f} ms: {limit}", flush=True)  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    keep_option_(parser)
    arguments = parser.parse_args()
    result = {"triton": triton.__version__, "sequences": BATCH, "heads": HEADS, "length": LENGTH, "kernels": measured()}
    if arguments.keep:
        keep(__file__, result)


if __name__ == "__main__":
    main()
