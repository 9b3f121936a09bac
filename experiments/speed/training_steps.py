"""What `quietformer train` costs: its steps against those of the Hugging Face Trainer used as its examples use it.

    python -m experiments.speed.training_steps [--rounds N] [--steps N] [--keep]

The same BERT, the same text, T = 128, one thread. Peers take turns, a few steps each, so that other work on the machine falls
on all alike; processor time from the end of one step to the end of the next, loading of data included; medians are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import DataCollatorForLanguageModeling, Trainer, TrainerCallback, TrainingArguments

from experiments.provenance import keep, keep_option_
from quietformer.config.recipe import Recipe
from quietformer.data.packing import token_rows
from quietformer.data.text_sources import texts_of
from quietformer.data.training_data import tokenizer_for, training_data
from quietformer.models.silence_transformers import silenced_transformers
from quietformer.training.arguments import set_sizes_, training_arguments
from quietformer.training.run import make_trainer
from quietformer.training.strategies import strategy_for
from quietformer.training.strategies.base import Prepared, Setting

MODEL = {
    "model_type": "bert", "hidden_size": 384, "num_hidden_layers": 4, "num_attention_heads": 6, "intermediate_size": 1536,
}  # fmt: skip
ATTENTION = {
    "vanilla": {},
    "gated linear": {"gate": "linear(pi_init=0.5)"},
    "gated mlp": {"gate": "mlp(hidden=4)"},
    "clipped": {"normalizer": "clipped_softmax(gamma=-0.03)"},
}
WARM = 3
"""Steps of each turn that are not counted."""


def recipe(attention: dict[str, str], steps: int) -> Recipe:
    return Recipe(
        name="bench", task="masked",
        model={"config": MODEL, "dropout": 0.1}, attention=attention, tokenizer={"vocabulary": 2048},
        data={"train": "embedded", "limit": 4000, "length": 128},
        optimizer={"learning_rate": 1e-4},
        training={"steps": steps, "batch_size": 8, "evaluate_every": 0, "save_every": 0, "log_every": 100},
    )  # fmt: skip


class Clock(TrainerCallback):
    """Processor time from step to step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._last = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        now = time.process_time()
        if state.global_step > WARM:
            self.seconds.append(now - self._last)
        self._last = now


class NoSaving(TrainerCallback):
    """The checkpoint at the end of a run is not what is measured."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_save = False


def ours(attention: dict[str, str], steps: int, folder: Path) -> list[float]:
    chosen, clock = recipe(attention, steps), Clock()
    arguments = training_arguments(chosen, folder)
    data = training_data(chosen, folder)
    set_sizes_(arguments, chosen, steps)
    arguments.logging_steps = 100  # as the peer; short runs speak more often than long ones
    strategy, setting = strategy_for(chosen, Prepared()), Setting(chosen, folder, arguments, steps)
    trainer = make_trainer(setting, strategy, strategy.model(data, None), data, [clock, NoSaving()])
    with contextlib.redirect_stderr(io.StringIO()):
        trainer.train()
    return clock.seconds


def bare(steps: int, folder: Path) -> list[float]:
    """The Trainer with its own collator, sampler and loss, as transformers' language modelling example sets it up."""
    chosen, clock = recipe({}, steps), Clock()
    texts = texts_of(chosen.data.train, chosen.data)
    tokenizer = tokenizer_for(chosen, folder, texts)
    rows = token_rows(texts, tokenizer, chosen.data)
    data = training_data(chosen, folder)
    trainer = Trainer(
        model=strategy_for(chosen, Prepared()).model(data, None),
        args=TrainingArguments(
            output_dir=str(folder), max_steps=steps, per_device_train_batch_size=8, learning_rate=1e-4, weight_decay=0.01,
            save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=not torch.cuda.is_available(), seed=0,
            logging_steps=100,
        ),
        train_dataset=rows,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15),
        callbacks=[clock],
    )  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train()
    return clock.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=13)
    keep_option_(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp())
    peers: dict[str, Callable[[], list[float]]] = {"bare Trainer": lambda: bare(arguments.steps, folder)}
    for name, attention in ATTENTION.items():
        peers[name] = lambda attention=attention: ours(attention, arguments.steps, folder)  # type: ignore[misc]
    times: dict[str, list[float]] = {name: [] for name in peers}
    with silenced_transformers():
        for turn in range(arguments.rounds):
            # Backwards every other time: a machine that slows down or speeds up favours nobody.
            for name in list(peers)[:: 1 if turn % 2 == 0 else -1]:
                times[name] += peers[name]()
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    figures = {
        "what": "processor seconds a training step, BERT 4 x 384, 8 x 128 tokens, one thread",
        "seconds": medians,
        "steps_timed": len(times["vanilla"]),
        "throughput": {
            "quietformer vanilla / bare Trainer": medians["bare Trainer"] / medians["vanilla"],
            **{f"{name} / vanilla": medians["vanilla"] / medians[name] for name in ATTENTION if name != "vanilla"},
        },
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "machine": platform.machine(),
        },
    }
    for name, ratio in figures["throughput"].items():
        print(f"{name:40} {ratio:.3f}")
    if arguments.keep:
        keep(__file__, figures)


if __name__ == "__main__":
    main()
