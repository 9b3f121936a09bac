"""Small models of our own: a BERT and an OPT with softmax, clipped softmax and gates, and a ViT on digits.

    python examples/small_models.py OUT [--steps N] [--only bert,opt,vit]

Each ends as a folder under OUT that `quietformer inspect` takes. The setting (post-norm, high learning rate, constant and
then falling) is one in which outliers grow within minutes; the models stay far from useful.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

import quietformer as qf
from quietformer.data.builtin_text import builtin_paragraphs
from quietformer.data.image_batches import digit_images
from quietformer.data.text_batches import token_sequences

VARIANTS = {
    "softmax": None,
    "clipped": qf.AttentionSpec(normalizer=qf.ClippedSoftmax(gamma=-0.03, warmup_steps=300)),
    "gated": qf.AttentionSpec(gate=qf.LinearGate(pi_init=0.5)),
}
CHARACTERS = 3_000_000


def corpus() -> list[str]:
    texts, size = [], 0
    for paragraph in builtin_paragraphs():
        texts.append(paragraph)
        size += len(paragraph)
        if size > CHARACTERS:
            break
    return texts


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=512, special_tokens=special))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def settings(folder: Path, steps: int, batch: int, rate: float) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=batch,
        learning_rate=rate,
        weight_decay=0.01,
        warmup_steps=min(300, steps // 4),
        lr_scheduler_type="linear",
        logging_steps=200,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        seed=0,
        disable_tqdm=True,
    )


def bert() -> PreTrainedModel:
    config = BertConfig(
        vocab_size=512, hidden_size=96, num_hidden_layers=4, num_attention_heads=4, intermediate_size=384,
        max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertForMaskedLM(config)


def opt() -> PreTrainedModel:
    config = OPTConfig(
        vocab_size=512, hidden_size=96, word_embed_proj_dim=96, num_hidden_layers=4, num_attention_heads=4, ffn_dim=384,
        max_position_embeddings=64, dropout=0.0, attention_dropout=0.0, pad_token_id=0, bos_token_id=2, eos_token_id=3,
    )  # fmt: skip
    return OPTForCausalLM(config)


def language_model(
    build: Callable[[], PreTrainedModel],
    texts: list[str],
    tokenizer: PreTrainedTokenizerFast,
    variant: str,
    out: Path,
    steps: int,
) -> None:
    torch.manual_seed(0)
    model = build()
    if (spec := VARIANTS[variant]) is not None:
        qf.apply_attention_(model, spec)
    sequences = [{"input_ids": ids} for ids in token_sequences(texts, tokenizer, count=20_000, length=64)]
    masked = isinstance(model, BertForMaskedLM)
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=masked, mlm_probability=0.25 if masked else None)
    trainer = Trainer(
        model=model, args=settings(out, steps, 16, 3e-3), train_dataset=sequences, data_collator=collator,
        callbacks=[qf.WarmupCallback()],
    )  # fmt: skip
    trainer.train()
    write(model, out / f"{build.__name__}-{variant}", tokenizer)


def vit(out: Path, steps: int) -> None:
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=256, image_size=32, patch_size=4,
        num_labels=10,
    )  # fmt: skip
    model = ViTForImageClassification(config)
    pixels, labels = digit_images(count=1500, size=32, channels=3)
    images = [{"pixel_values": image, "labels": label} for image, label in zip(pixels, labels, strict=True)]
    Trainer(model=model, args=settings(out, steps, 16, 1e-3), train_dataset=images).train()
    write(model, out / "vit", None)


def write(model: PreTrainedModel, folder: Path, tokenizer: PreTrainedTokenizerFast | None) -> None:
    if any(True for _ in qf.attention_cores(model)):
        qf.save(model, folder, processor=tokenizer)
        return
    model.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--only", default="bert,opt,vit", help="which families, separated by commas")
    arguments = parser.parse_args()
    families = arguments.only.split(",")
    texts = corpus()
    tokenizer = train_tokenizer(texts)
    for build in [build for build in (bert, opt) if build.__name__ in families]:
        for variant in VARIANTS:
            print(f"{build.__name__}, {variant}", flush=True)
            language_model(build, texts, tokenizer, variant, arguments.out, arguments.steps)
    if "vit" in families:
        print("vit", flush=True)
        vit(arguments.out, arguments.steps // 4)


if __name__ == "__main__":
    main()
