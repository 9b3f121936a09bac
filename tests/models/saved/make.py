"""Writes the folders beside this file, with the code of an earlier commit: see README.md.

    PYTHONPATH=OLD/src python tests/models/saved/make.py FORMAT OUT

Only what all of these commits offer in the same way is used.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    OPTConfig,
    OPTForCausalLM,
    ViTConfig,
    ViTForImageClassification,
)

import quietformer as qf

QUANTIZED, GAINED_NORMS, GAINED_ACTIVATIONS, PLACEMENTS, PREFIXES, PASSES = 2, 3, 4, 5, 6, 7
"""The formats that brought each of these; a release writes what an earlier format can say in that format."""


def bert() -> BertForMaskedLM:
    return BertForMaskedLM(
        BertConfig(
            vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=16,
        )
    )  # fmt: skip


def opt() -> OPTForCausalLM:
    return OPTForCausalLM(
        OPTConfig(
            vocab_size=32, hidden_size=16, word_embed_proj_dim=16, num_hidden_layers=2, num_attention_heads=2, ffn_dim=32,
            max_position_embeddings=16,
        )
    )  # fmt: skip


def vit() -> ViTForImageClassification:
    return ViTForImageClassification(
        ViTConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4,
            num_labels=4,
        )
    )  # fmt: skip


def albert() -> AlbertForMaskedLM:
    return AlbertForMaskedLM(
        AlbertConfig(
            vocab_size=32, embedding_size=8, hidden_size=16, num_hidden_layers=3, num_attention_heads=2,
            intermediate_size=32, max_position_embeddings=16,
        )
    )  # fmt: skip


BUILD = {"bert": bert, "opt": opt, "vit": vit, "albert": albert}


def text() -> dict[str, torch.Tensor]:
    mask = torch.ones(3, 12, dtype=torch.long)
    mask[0, 8:] = 0
    return {"input_ids": torch.randint(4, 32, (3, 12)), "attention_mask": mask}


def images() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(3, 3, 8, 8)}


def made(architecture: str, spec: qf.AttentionSpec | None = None) -> Any:
    """A model whose weights are all far from their start: new gates would else do nothing that can be told apart."""
    model = BUILD[architecture]().eval()
    if spec is not None:
        qf.apply_attention_(model, spec)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def examples(newest: int) -> dict[str, tuple[Any, dict[str, torch.Tensor]]]:
    """Models by name, each with an input."""
    clipped = qf.ClippedSoftmax(alpha=2.0, warmup_steps=10)
    found: dict[str, tuple[Any, dict[str, torch.Tensor]]] = {}

    def add(name: str, model: Any, given: dict[str, torch.Tensor]) -> Any:
        found[name] = (model, given)
        return model

    model = add(
        "clipped_and_linear_gate", made("opt", qf.AttentionSpec(normalizer=clipped, gate=qf.LinearGate())), text()
    )
    qf.advance_warmup_(model, 5)
    add("sink_and_mlp_gate", made("bert", qf.AttentionSpec(normalizer=qf.LearnedSink(), gate=qf.MLPGate())), text())
    qf.add_patch_norm_(add("patch_norm", made("vit", qf.AttentionSpec(normalizer=qf.Softmax1())), images()))
    if newest >= GAINED_NORMS:
        if newest >= PLACEMENTS:
            balance_ = qf.balance_
        else:
            from quietformer.quant.balance import balance_

        balance_(add("balanced", made("bert"), text()), [text()])
        balance_(
            add("balanced_and_quantized", made("bert", qf.AttentionSpec(gate=qf.AllHeadsGate())), text()), [text()]
        )
    if newest >= QUANTIZED:
        add("quantized", made("opt", qf.AttentionSpec(gate=qf.LinearGate())), text())
        for name in ("quantized", "balanced_and_quantized"):
            if name in found:
                model, given = found[name]
                qf.quantize_(model, qf.QuantSpec(per_channel=name != "quantized"), given)
                qf.calibrate_(model, [text(), text()])
    if newest >= PLACEMENTS:
        model = add("products_quantized", made("bert", qf.AttentionSpec(gate=qf.LinearGate())), text())
        qf.quantize_(model, qf.QuantSpec(placement="matmul", per_channel=True), text())
        qf.calibrate_(model, [text(), text()])
        model = add("tokens_quantized", made("opt"), text())
        qf.quantize_(model, qf.QuantSpec(placement="matmul", granularity="token"), text())
        qf.calibrate_(model, [text(), text()])
    if newest >= PREFIXES:
        qf.add_prefix_(add("prefixed", made("opt"), text()), (5, 9))
    if newest >= PASSES:
        model = add("passes_quantized", made("albert"), text())
        qf.quantize_(model, qf.QuantSpec(placement="matmul", per_pass=True), text())
        qf.calibrate_(model, [text(), text()])
    return found


def main() -> None:
    newest, out = int(sys.argv[1]), Path(sys.argv[2])
    torch.manual_seed(newest)
    for name, (model, given) in examples(newest).items():
        with torch.no_grad():
            logits = model(**given).logits
        folder = out / f"format_{newest}" / name
        qf.save(model, folder)
        save_file({**given, "logits": logits.contiguous()}, folder / "expected.safetensors")
        if json.loads((folder / "config.json").read_text())["quantization_config"]["version"] != newest:
            shutil.rmtree(folder)  # an earlier format has the same


if __name__ == "__main__":
    main()
