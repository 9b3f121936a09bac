"""What the processor can do: a latency says little without it."""

from __future__ import annotations

import platform

import torch

INTEGER_PRODUCTS = {
    "amx_int8": "AMX",
    "avx512_vnni": "AVX-512 VNNI",
    "avx_vnni": "AVX-VNNI",
    "avx512f": "AVX-512 without VNNI",
    "avx2": "AVX2 without VNNI",
    "i8mm": "NEON with i8mm",
    "asimddp": "NEON with dot products",
    "asimd": "NEON",
}
"""Flags of /proc/cpuinfo, and the instructions for INT8 products that they stand for; the fastest first."""
BF16 = {"amx_bf16", "avx512_bf16", "bf16"}


def instruction_set() -> str:
    """The instructions that INT8 products run on, and bf16 where there is it: `AVX-512 VNNI, bf16`."""
    return instructions_of(_cpuinfo("flags", "Features").split()) or torch.backends.cpu.get_cpu_capability()


EXACT = ("AMX", "AVX-512 VNNI", "AVX-VNNI", "NEON")
"""Instructions that add INT8 products in 32 bits, where nothing overflows."""


def adds_exactly() -> bool:
    """Whether signed weights cannot overflow here, so that trying them on this machine shows nothing about others."""
    return adds_exactly_on(instruction_set())


def adds_exactly_on(instructions: str | None) -> bool:
    """The same of the processor that has these instructions."""
    return (instructions or "").startswith(EXACT)


def instructions_of(flags: list[str]) -> str:
    """The same from the flags of a processor; empty if none is known."""
    found = next((name for flag, name in INTEGER_PRODUCTS.items() if flag in flags), "")
    return f"{found}, bf16" if found and BF16 & set(flags) else found


def processor_name() -> str:
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def _cpuinfo(*fields: str) -> str:
    """The first of these fields that Linux tells of the first processor; empty elsewhere."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            return next(line.partition(":")[2].strip() for line in info if line.startswith(fields))
    except (OSError, StopIteration):
        return ""
