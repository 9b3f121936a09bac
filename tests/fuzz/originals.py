"""The undamaged inputs, made once."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import torch
import yaml
from datasets import Dataset
from PIL import Image
from transformers import (
    BertConfig,
    BertForMaskedLM,
    ViTConfig,
    ViTForImageClassification,
    Wav2Vec2Config,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2Model,
)

import quietformer as qf
from quietformer.config.recipe import Recipe
from quietformer.config.recipe_files import read_recipe
from quietformer.data.tokenizers import train_tokenizer
from quietformer.models.silence_transformers import silenced_transformers
from quietformer.study.sweep import sweep
from quietformer.training import trainer as trainer_module
from quietformer.training.run import train
from tests.gguf_files import tiny_llama, tiny_tokenizer, write_gguf
from tests.training.recipes import tiny, write_prose

STEPS, SAVED, STOPPED = 6, 2, 4
"""Of the run that was killed: its length, how often it was saved, and where it ended."""


def make_originals(place: Path) -> None:
    """Everything that the subjects take copies of; by another process, since torch's threads do not survive a fork."""
    subprocess.run([sys.executable, "-m", "tests.fuzz.originals", str(place)], check=True, stdout=subprocess.DEVNULL)


def _make(place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    text = write_prose(place / "text.txt", 12)
    with silenced_transformers():
        _models(place, text)
    _images(place / "images")
    _audio(place / "audio")
    _recipe(place, text)
    _runs(place)
    _study(place)
    _sentences(place)


def _models(place: Path, text: Path) -> None:
    torch.manual_seed(0)
    tokenizer = train_tokenizer(text.read_text().splitlines(), vocabulary=300, characters=100_000)
    bert = BertForMaskedLM(
        BertConfig(
            vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
            max_position_embeddings=32,
        )
    ).eval()  # fmt: skip
    bert.save_pretrained(place / "plain")
    tokenizer.save_pretrained(place / "plain")
    bert.save_pretrained(place / "sharded", max_shard_size="20KB")
    tokenizer.save_pretrained(place / "sharded")
    ours = qf.open_model(place / "plain")
    qf.apply_attention_(ours, qf.AttentionSpec(normalizer=qf.ClippedSoftmax(alpha=1), gate=qf.LinearGate()))
    qf.save(ours, place / "ours")
    batch = {"input_ids": torch.randint(10, 300, (4, 16)), "attention_mask": torch.ones(4, 16, dtype=torch.int64)}
    quantized = qf.open_model(place / "ours")
    qf.quantize_(quantized, qf.QuantSpec(per_channel=True), batch)
    qf.calibrate_(quantized, [batch])
    qf.save(quantized, place / "quantized")
    words = tiny_tokenizer(text.read_text())
    llama = tiny_llama(len(words))
    llama.save_pretrained(place / "causal")
    words.save_pretrained(place / "causal")
    write_gguf(place / "tiny.gguf", llama, words)
    vit = ViTForImageClassification(
        ViTConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=16, patch_size=8,
            num_labels=2,
        )
    )  # fmt: skip
    vit.save_pretrained(place / "vision")
    speech = Wav2Vec2Model(
        Wav2Vec2Config(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, conv_dim=(16, 16),
            conv_stride=(5, 4), conv_kernel=(10, 8), num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2,
        )
    )  # fmt: skip
    speech.save_pretrained(place / "speech")
    Wav2Vec2FeatureExtractor(sampling_rate=8000).save_pretrained(place / "speech")


def _sentences(place: Path) -> None:
    """A sentence encoder as sentence-transformers lays it out, and what `export` makes of it."""
    folder = place / "sentences"
    with silenced_transformers():
        BertForMaskedLM.from_pretrained(place / "plain").bert.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(place / "plain" / name, folder / name)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    files = {
        "modules.json": [
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for number, (path, kind) in enumerate(kinds.items())
        ],
        "1_Pooling/config.json": {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True},
        "sentence_bert_config.json": {"max_seq_length": 16, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {"query": "word: "}, "default_prompt_name": None},
    }  # fmt: skip
    (folder / "1_Pooling").mkdir()
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    options = {
        "length": 16,
        "sequences": 4,
        "calibration": 2,
        "search": False,
        "timed": False,
        "runtime": "onnxruntime",
    }
    qf.export(folder, place / "exported", texts=place / "text.txt", **options)


def _images(folder: Path) -> None:
    draw = np.random.default_rng(0)
    for name in ("a/one.png", "a/two.jpg", "b/three.bmp", "b/four.gif"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 255, (24, 24, 3), dtype=np.uint8)).save(folder / name)


def _audio(folder: Path) -> None:
    folder.mkdir()
    draw = np.random.default_rng(0)
    for name in ("one", "two"):
        with wave.open(str(folder / f"{name}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            file.writeframes((draw.normal(0, 3000, 4000)).astype("<i2").tobytes())


def recipe_fields(text: Path | str) -> dict[str, object]:
    attention = {"normalizer": "clipped_softmax(alpha=2, warmup_steps=3)", "gate": "linear(pi_init=0.5)"}
    fields = tiny(
        "causal", text, attention=attention,
        training={"steps": STEPS, "batch_size": 4, "save_every": SAVED, "evaluate_every": 0, "log_every": 2, "outliers_every": 0},
    )  # fmt: skip
    return fields | {"variants": {"vanilla": {}, "gated": {"set": {"attention.gate": "linear(pi_init=0.25)"}}}}


def _recipe(place: Path, text: Path) -> None:
    """A recipe, a study of it, and its text as the other kinds of files that can be trained on."""
    lines = [line for line in text.read_text().splitlines() if line]
    table = Dataset.from_dict({"text": lines})
    table.to_csv(place / "table.csv")
    table.to_json(place / "table.jsonl")
    table.to_parquet(place / "table.parquet")
    (place / "recipe.yaml").write_text(yaml.safe_dump(recipe_fields(text)))
    study = {
        "recipe": "recipe.yaml", "grid": {"variant": ["vanilla", "gated"]}, "seeds": [0],
        "measures": {"sequences": 4, "calibrations": 1}, "set": {"training.steps": 2},
    }  # fmt: skip
    (place / "study.yaml").write_text(yaml.safe_dump(study))


class _KilledError(BaseException):
    """As sudden as a signal."""


def _runs(place: Path) -> None:
    """A finished run, and the same run as a kill after its second checkpoint leaves it."""
    recipe: Recipe = read_recipe(str(place / "recipe.yaml"))
    publish = trainer_module.publish

    def killing(run: Path, name: str) -> Path:
        done = publish(run, name)
        if name == f"checkpoint-{STOPPED}":
            raise _KilledError
        return done

    trainer_module.publish = killing  # type: ignore[assignment]
    try:
        with contextlib.suppress(_KilledError):
            train(recipe, place / "killed")
    finally:
        trainer_module.publish = publish  # type: ignore[assignment]
    shutil.copytree(place / "killed", place / "finished")
    train(recipe, place / "finished")


def _study(place: Path) -> None:
    from quietformer.config.options.study import SweepOptions

    sweep(str(place / "study.yaml"), SweepOptions(out=place / "swept"))


if __name__ == "__main__":
    _make(Path(sys.argv[1]))
