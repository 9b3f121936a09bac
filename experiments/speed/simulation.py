"""What calibrating and simulating cost against plain forward passes: BERT-base shape, T = 128, in one run.

    python -m experiments.speed.simulation [--batch N] [--rounds N] [--keep]

Plain, calibrating and simulated passes alternate, so that other work on the machine falls on all alike; processor time.
Two plain models stand beside ours: the attention that ships (SDPA) and the vanilla core, which computes the same in steps
that can be tapped.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import torch
import transformers
from transformers import BertConfig, BertModel

import quietformer as qf
from experiments.provenance import keep, keep_option_
from quietformer.config.quantization import QuantSpec
from quietformer.quant.calibration import calibrate_, full_precision, quantize_


def seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    keep_option_(parser)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    plain = BertModel(BertConfig()).eval()
    ours = BertModel(BertConfig()).eval()
    tokens = torch.randint(1000, 30000, (arguments.batch, 128))
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    print(f"BERT-base shape, batch {arguments.batch}, T = 128, {torch.get_num_threads()} threads, processor time")
    print(quantize_(ours, QuantSpec(), batch))

    def as_shipped() -> None:
        with torch.no_grad():
            plain(**batch)

    def with_core() -> None:
        with torch.no_grad(), full_precision(ours):
            ours(**batch)

    def calibrating() -> None:
        calibrate_(ours, [batch] * 16)

    def simulated() -> None:
        with torch.no_grad():
            ours(**batch)

    calibrating()
    for run in (as_shipped, with_core, simulated):
        run()
    taken: dict[str, list[float]] = {}
    for _ in range(arguments.rounds):
        for name, run in (("sdpa", as_shipped), ("core", with_core), ("simulated", simulated)):
            taken.setdefault(name, []).extend(seconds(run) for _ in range(2))
        taken.setdefault("calibration of 16", []).append(seconds(calibrating))
    median = {name: statistics.median(times) for name, times in taken.items()}
    ratios = {
        "calibration_to_16_plain": median["calibration of 16"] / (16 * median["sdpa"]),
        "calibration_to_16_with_core": median["calibration of 16"] / (16 * median["core"]),
        "simulated_to_plain": median["simulated"] / median["sdpa"],
        "simulated_to_with_core": median["simulated"] / median["core"],
    }
    for name, ratio in ratios.items():
        print(f"{name.replace('_', ' '):30} {ratio:.2f}")
    figures = {
        "seconds": median, "ratios": ratios, "threads": torch.get_num_threads(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__, "quietformer": qf.__version__},
        "processor": platform.processor() or platform.machine(),
    }  # fmt: skip
    if arguments.keep:
        keep(__file__, figures)


if __name__ == "__main__":
    main()
