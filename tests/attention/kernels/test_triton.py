"""The Triton kernels, in the interpreter and through the compiler: both work without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from experiments.speed import triton_compile
from quietformer.attention.kernels import fused, triton_launch
from quietformer.attention.kernels.fused import Beside, triton_takes
from quietformer.attention.kernels.triton_launch import Call

CASES = Path(__file__).with_name("triton_cases.py")


def test_the_kernels_compute_what_the_plain_core_computes():
    """In a process of its own: the interpreter takes the place of the compiler when Triton is imported."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(CASES)]
    done = subprocess.run(command, env=environment, cwd=CASES.parents[3], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout


@pytest.mark.parametrize(("capability", "kind"), [(90, "softpick")])
def test_the_kernels_compile_for_gpus_and_keep_their_sums_in_registers(capability, kind, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    gpu = next(gpu for gpu in triton_compile.GPUS if gpu.capability == capability)
    found = triton_compile.launches(triton_compile.call_for(kind, 64, torch.bfloat16))
    names = ["context_of_rows", "row_slopes", "gradients"]
    assert [launch.name for launch in found] == (["row_statistics", *names] if kind == "clipped" else names)
    for launch in found:
        result = triton_compile.compiled(launch, capability)
        assert result["spilled"] <= 64, launch.name  # what a loop sums would be thousands of bytes
        assert triton_compile.blocks_at_once(result, gpu) >= 1
        if launch.name != "row_slopes" or kind == "clipped":
            assert result["loops"]
        assert all(
            milliseconds >= 0 for milliseconds in triton_compile.least_milliseconds(launch, result, gpu).values()
        )


@pytest.mark.parametrize("kind", ["clipped"])
def test_the_kernels_compile_with_everything_that_a_call_can_have(kind, tmp_path, monkeypatch):
    """Grouped heads, other widths of values, every mask, a bias that learns, dropout, a sink, and a gate by feature."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    n_batch, heads, length = 2, 4, 70
    with torch.device("meta"):
        call = Call(
            query=torch.empty(n_batch, heads, length, 40), key=torch.empty(n_batch, 2, length, 40),
            value=torch.empty(n_batch, 2, length, 24), low=torch.empty(1, 1, length, 1), sink=torch.empty(heads),
            mask=torch.empty(n_batch, 1, length, length, dtype=torch.float16), bias=torch.empty(1, heads, length, length),
            padding=torch.empty(n_batch, length, dtype=torch.bool), gate=torch.empty(n_batch, length, heads, 24),
            seed=torch.empty(1, dtype=torch.int64), kind=kind, numbers=[0.2, 1.1, 0.1], span=[3, 16],
        )  # fmt: skip
    halves = [x.to(torch.float16 if kind == "clipped" else torch.bfloat16) for x in call[:3]]
    for launch in triton_compile.launches(Call(*halves, *call[3:])):
        assert triton_compile.compiled(launch, 80)["registers"] > 0


@pytest.mark.parametrize("width", [16, 40, 64, 80, 128, 256])
@pytest.mark.parametrize("dtype", fused.DTYPES)
def test_every_width_has_a_tile_whose_sides_are_powers_of_two(width, dtype):
    for kernel in ("row_statistics", "context_of_rows", "row_slopes", "gradients"):
        tile = triton_launch.tile_for(kernel, dtype, width)
        assert all(side >= 16 and side & (side - 1) == 0 for side in (tile.queries, tile.keys))


def test_a_cpu_does_not_take_the_kernels_unless_it_interprets_them():
    tensors = [torch.randn(1, 2, 9, 8) for _ in range(3)]
    assert triton_takes(*tensors, Beside()) == (os.environ.get("TRITON_INTERPRET") == "1")
