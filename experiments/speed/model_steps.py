"""What a training step of a whole model costs with each attention: against transformers' SDPA and its eager attention.

    python -m experiments.speed.model_steps [--models bert-base opt-125m vit-s] [--variants ...] [--rounds N] [--keep]

Forward, backward and AdamW, each attention taking turns with SDPA, one thread, processor time of the fastest turn. The paper's
ratios are against its own eager baseline.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertForMaskedLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
    ViTConfig,
    ViTForImageClassification,
)

import quietformer as qf
from experiments.provenance import keep, keep_option_
from experiments.speed.turns import fastest, machine

SDPA, EAGER = "vanilla, SDPA", "vanilla, eager"
VARIANTS = {
    "vanilla core": qf.AttentionSpec(),
    "linear gate": qf.AttentionSpec(gate=qf.LinearGate()),
    "MLP gate": qf.AttentionSpec(gate=qf.MLPGate()),
    "all-heads gate": qf.AttentionSpec(gate=qf.AllHeadsGate()),
    "clipped softmax": qf.AttentionSpec(normalizer=qf.ClippedSoftmax()),
    "softmax1": qf.AttentionSpec(normalizer=qf.Softmax1()),
    "learned sink": qf.AttentionSpec(normalizer=qf.LearnedSink()),
}


def bert(dropout: float) -> tuple[PreTrainedModel, dict[str, Tensor]]:
    config = BertConfig(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    tokens = torch.randint(1000, 30000, (4, 128))
    return BertForMaskedLM(config), {"input_ids": tokens, "labels": tokens}


def opt(dropout: float) -> tuple[PreTrainedModel, dict[str, Tensor]]:
    config = OPTConfig(dropout=dropout, attention_dropout=dropout)
    tokens = torch.randint(1000, 30000, (1, 512))
    return OPTForCausalLM(config), {"input_ids": tokens, "labels": tokens}


def vit(dropout: float) -> tuple[PreTrainedModel, dict[str, Tensor]]:
    config = ViTConfig(
        hidden_size=384, num_attention_heads=6, intermediate_size=1536, num_labels=1000,
        hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    return ViTForImageClassification(config), {"pixel_values": torch.randn(4, 3, 224, 224), "labels": torch.arange(4)}


MODELS = {"bert-base": (bert, "T = 128, 4 sequences"), "opt-125m": (opt, "T = 512, 1 sequence"),
          "vit-s": (vit, "T = 197, 4 images")}  # fmt: skip


def step(model: Any, batch: dict[str, Tensor]) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def run() -> None:
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()

    return run


def ratios(name: str, dropout: float, rounds: int, variants: list[str]) -> dict[str, Any]:
    """Each attention against SDPA, the two alone: more models at a time would wait for their memory, not for their work."""
    build, about = MODELS[name]

    def made(variant: str) -> Callable[[], None]:
        torch.manual_seed(0)
        model, batch = build(dropout)
        model.train()
        if variant in (SDPA, EAGER):
            model.set_attn_implementation("sdpa" if variant == SDPA else "eager")
        else:
            qf.apply_attention_(model, VARIANTS[variant])
        return step(model, batch)

    sdpa = made(SDPA)
    found, all_seconds = {}, []
    for variant in variants:
        seconds = fastest({SDPA: sdpa, variant: made(variant)}, rounds, time.process_time)
        found[variant] = seconds[variant] / seconds[SDPA]
        all_seconds.append(seconds[SDPA])
    shown = ", ".join(f"{variant} {ratio:.3f}" for variant, ratio in found.items())
    print(f"{name}, {about}, dropout {dropout:g}: SDPA {min(all_seconds):.2f} s; {shown}", flush=True)
    return {"model": name, "about": about, "dropout": dropout, "sdpa_seconds": min(all_seconds), "ratios": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--dropout", type=float, nargs="+", default=[0.0])
    parser.add_argument("--variants", nargs="+", choices=[EAGER, *VARIANTS], default=[EAGER, *VARIANTS])
    parser.add_argument("--rounds", type=int, default=7)
    keep_option_(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    figures: dict[str, Any] = {"machine": machine()}
    print(json.dumps(figures["machine"]))
    figures["steps"] = [
        ratios(name, dropout, arguments.rounds, arguments.variants)
        for name in arguments.models
        for dropout in arguments.dropout
    ]
    if arguments.keep:
        keep(__file__, figures)


if __name__ == "__main__":
    main()
