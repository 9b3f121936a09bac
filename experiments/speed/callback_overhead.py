"""What OutlierCallback costs: steps it watches against steps it does not, in one run, at its default interval.

    python -m experiments.speed.callback_overhead [--steps N] [--keep]

Watched and unwatched steps alternate, so that other work on the machine falls on both alike.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import time
from typing import Any

import torch
import transformers
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainerCallback, TrainingArguments

import quietformer as qf
from experiments.provenance import keep, keep_option_


class Clock:
    """Processor time from before any other callback of a step to after all of them."""

    def __init__(self) -> None:
        self.started = 0.0
        self.seconds: list[float] = []

    def attach_(self, trainer: Trainer) -> None:
        clock = self

        class First(TrainerCallback):
            def on_step_begin(self, *_: Any, **__: Any) -> None:
                clock.started = time.process_time()

        class Last(TrainerCallback):
            def on_step_end(self, *_: Any, **__: Any) -> None:
                clock.seconds.append(time.process_time() - clock.started)

        trainer.callback_handler.callbacks.insert(0, First())
        trainer.callback_handler.callbacks.append(Last())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    keep_option_(parser)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=1000, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024
    )
    model = BertForMaskedLM(config)
    qf.apply_attention_(model, qf.AttentionSpec(gate=qf.LinearGate()))
    tokens = torch.randint(5, 1000, (64, 128))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    clock, interval = Clock(), qf.OutlierCallback().every
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder, max_steps=arguments.steps, per_device_train_batch_size=8, logging_steps=1000,
            save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True,
        )  # fmt: skip
        trainer = Trainer(model=model, args=settings, train_dataset=data)
        qf.OutlierCallback(every=2).attach_(trainer)
        clock.attach_(trainer)
        trainer.train()
    watched, plain = clock.seconds[4::2], clock.seconds[5::2]  # the first steps warm up
    extra = statistics.median(watched) / statistics.median(plain) - 1
    figures = {
        "watched_over_plain_step": 1 + extra,
        "interval": interval,
        "overhead_at_interval": extra / interval,
        "steps": len(watched) + len(plain),
        "threads": torch.get_num_threads(),
        "versions": {
            "torch": torch.__version__, "transformers": transformers.__version__, "python": platform.python_version()
        },
    }  # fmt: skip
    print(f"a watched step takes {1 + extra:.2f} of a plain one; every {interval} steps that is {extra / interval:.2%}")
    if arguments.keep:
        keep(__file__, figures)


if __name__ == "__main__":
    main()
