"""What OutlierCallback costs at its default interval: training time with it over training time without, in one run.

python benchmarks/callback_overhead.py [--steps N]     (writes results/callback_overhead.json)
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path

import torch
import transformers
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments

import quietformer as qf

ROOT = Path(__file__).resolve().parents[1]


def trainer(folder: str, steps: int, *, watched: bool) -> Trainer:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=1000, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024
    )
    model = BertForMaskedLM(config)
    qf.apply_attention_(model, qf.AttentionSpec(gate=qf.LinearGate()))
    tokens = torch.randint(5, 1000, (64, 64))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    arguments = TrainingArguments(
        output_dir=folder, max_steps=steps, per_device_train_batch_size=8, logging_steps=50, save_strategy="no",
        report_to="none", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    made = Trainer(model=model, args=arguments, train_dataset=data)
    if watched:
        qf.OutlierCallback().attach_(made)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100, help="a multiple of the callback's interval of 100")
    parser.add_argument("--pairs", type=int, default=5)
    arguments = parser.parse_args()
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        trainer(folder, 10, watched=True).train()  # warm up
        for pair in range(arguments.pairs):
            seconds = {}
            for watched in (False, True) if pair % 2 else (True, False):  # neither always goes first
                one = trainer(folder, arguments.steps, watched=watched)
                started = time.perf_counter()
                one.train()
                seconds[watched] = time.perf_counter() - started
            ratios.append(seconds[True] / seconds[False])
            print(f"pair {pair + 1}: {ratios[-1]:.4f}", flush=True)
    figures = {
        "command": f"python benchmarks/callback_overhead.py --steps {arguments.steps} --pairs {arguments.pairs}",
        "ratio_median": statistics.median(ratios),
        "ratios": ratios,
        "threads": torch.get_num_threads(),
        "versions": {
            "torch": torch.__version__, "transformers": transformers.__version__, "python": platform.python_version()
        },
    }  # fmt: skip
    print(f"with the callback / without: {figures['ratio_median']:.4f} (median of {len(ratios)})")
    (ROOT / "results" / "callback_overhead.json").write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
