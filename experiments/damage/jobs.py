"""The commands that are killed, in a folder of small inputs, and what each of them leaves when it ends."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import yaml

TEXT = ["--texts", "text.txt", "--length", "16"]
SMALL = ["--sequences", "8", "--seeds", "1"]

UNCOMPARED = (".lock", "runs/events*", "checkpoints/runs/*", "*/checkpoints/runs/*", "logs/*")
"""Logs, and the file that a lock is taken on: they belong to a folder, and two runs have different ones."""

WEIGHTS = ("*.safetensors", "*.onnx", "*.onnx.data", "*.bin", "*.xml")


@dataclass(frozen=True)
class Job:
    """A command, how many of a hundred kills it is given, and the folder it writes."""

    name: str
    kills: int
    words: tuple[str, ...]
    out: str
    before: bool = False  # the folder holds another model already

    def weights(self, place: Path) -> dict[str, str]:
        """Digests of everything that is weights in the folder."""
        return {name: digest for name, digest in contents(place / self.out) if any(fnmatch(name, p) for p in WEIGHTS)}

    def files(self, place: Path) -> set[str]:
        """Every path of the whole workspace, hidden ones as well."""
        found = {path.relative_to(place).as_posix() for path in place.rglob("*")}
        return {name for name in found if not any(fnmatch(name, f"*{pattern}") for pattern in UNCOMPARED)}


def contents(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not any(fnmatch(name, pattern) for pattern in UNCOMPARED):
            yield name, hashlib.sha256(path.read_bytes()).hexdigest()


JOBS = (
    Job("convert", 19, ("convert", "model", "gated", "--gate", "mlp", "--overwrite"), "gated"),
    Job("save over a folder", 20, ("convert", "model", "there", "--gate", "linear", "--overwrite"), "there", before=True),
    Job(
        "quantize", 16, ("quantize", "model", *TEXT, *SMALL, "--out", "simulated", "--overwrite", "--page", "q.html"),
        "simulated",
    ),
    Job("train", 26, ("train", "recipe.yaml", "--out", "run"), "run"),
    Job("sweep", 5, ("sweep", "study.yaml", "--out", "swept"), "swept"),
    Job(
        "retrofit", 7,
        ("retrofit", "model", "healed", *TEXT, *SMALL, "--steps", "6", "--force", "--no-real", "--set",
         "training.save_every=2", "--set", "training.evaluate_every=3"),
        "healed",
    ),
    Job(
        "export", 7,
        ("export", "model", "int8", *TEXT, "--sequences", "8", "--no-search", "--no-timed", "--runtime", "onnxruntime",
         "--overwrite"),
        "int8",
    ),
)  # fmt: skip


def prepare(place: Path) -> None:
    """A tiny model with a tokenizer, a text, a recipe and a study."""
    from transformers import BertConfig, BertForMaskedLM

    import quietformer as qf
    from quietformer.data.tokenizers import train_tokenizer
    from tests.training.recipes import tiny, write_prose

    text = write_prose(place / "text.txt", 12)
    tokenizer = train_tokenizer(text.read_text().splitlines(), vocabulary=300, characters=100_000)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=32,
    )  # fmt: skip
    model = BertForMaskedLM(config).eval()
    model.save_pretrained(place / "model")
    tokenizer.save_pretrained(place / "model")
    qf.apply_attention_(model, qf.AttentionSpec(normalizer=qf.Softmax1()))
    qf.save(model, place / "there", processor=tokenizer)
    fields = tiny(
        "causal", "text.txt",
        attention={"normalizer": "clipped_softmax(alpha=2, warmup_steps=5)", "gate": "linear(pi_init=0.5)"},
        training={"steps": 10, "batch_size": 4, "micro_batch": 2, "save_every": 2, "evaluate_every": 5, "outliers_every": 4},
    )  # fmt: skip
    variants = {"vanilla": {"set": {"attention": {}}}, "gated": {}}
    (place / "recipe.yaml").write_text(yaml.safe_dump(fields | {"variants": variants}))
    study = {
        "recipe": "recipe.yaml", "grid": {"variant": ["vanilla", "gated"]}, "set": {"training.steps": 4},
        "measures": {"sequences": 4, "calibrations": 1},
    }  # fmt: skip
    (place / "study.yaml").write_text(yaml.safe_dump(study))


def readable(out: Path) -> Callable[[], None]:
    """Whether what stands at the folder's name is whole: it loads."""

    def check() -> None:
        import quietformer as qf

        if (out / "config.json").is_file():
            qf.open_model(out)

    return check


if __name__ == "__main__":
    prepare(Path(sys.argv[1]))
    json.dump({"jobs": [job.name for job in JOBS]}, sys.stdout)
