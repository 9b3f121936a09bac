"""What is read, by which command, and the result that damage must not change."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

from tests.fuzz.case import Subject

TIMES = ("seconds", "steps_per_second", "seconds_of_work", "versions", "commit", "version")


def copied(*names: str) -> Callable[[Path, Path], None]:
    """Files and folders of the originals under the same names."""

    def prepare(originals: Path, place: Path) -> None:
        for name in names:
            if (originals / name).is_dir():
                shutil.copytree(originals / name, place / name)
            else:
                shutil.copy2(originals / name, place / name)

    return prepare


def numbers(content: Any) -> Iterator[float]:
    """Every number of a report, without what differs from time to time."""
    if isinstance(content, dict):
        for name in sorted(content):
            if name not in TIMES:
                yield from numbers(content[name])
    elif isinstance(content, list):
        for item in content:
            yield from numbers(item)
    elif isinstance(content, (int, float)):
        yield content


def report_numbers(place: Path) -> Any:
    return list(numbers(json.loads((place / "out.json").read_text())))


def folder_weights(name: str) -> Callable[[Path], Any]:
    """Every tensor of a folder's weights, as bytes."""

    def read(place: Path) -> Any:
        found = {}
        for path in sorted((place / name).glob("*.safetensors")):
            found |= {key: (tensor.dtype, tensor.numpy().tobytes()) for key, tensor in load_file(path).items()}
        return found

    return read


def study_rows(place: Path) -> Any:
    return list(numbers(json.loads((place / "swept" / "study.json").read_text())["rows"]))


TEXT = ["--texts", "text.txt", "--length", "16", "--sequences", "2", "--no-interventions"]
INSPECT = ["--page", "page.html", "--json", "out.json"]


def inspected(name: str) -> Subject:
    return Subject(
        f"{name} model folder",
        copied(name, "text.txt"),
        lambda place: ["inspect", name, *TEXT, *INSPECT],
        report_numbers,
    )


def converted(name: str) -> Subject:
    return Subject(
        f"{name} model folder, converted",
        copied(name),
        lambda place: ["convert", name, "out", "--attention", "softmax1"],
        folder_weights("out"),
    )


PLAIN, SHARDED, OURS, QUANTIZED = map(inspected, ("plain", "sharded", "ours", "quantized"))
PLAIN_CONVERTED, OURS_CONVERTED = map(converted, ("plain", "ours"))

WHOLE = [
    "quantize",
    "sentences",
    "--texts",
    "text.txt",
    "--length",
    "16",
    "--sequences",
    "2",
    "--calibration",
    "1",
    "--seeds",
    "1",
]

SENTENCES = Subject(
    "sentence-transformers folder",
    copied("sentences", "text.txt"),
    lambda place: [*WHOLE, *INSPECT],
    report_numbers,
)

SENTENCES_CONVERTED = converted("sentences")

BENCH = ["--shapes", "1x8", "--seconds", "0.01", "--no-memory", "--threads", "1"]

EXPORTED = Subject(
    "exported folder", copied("exported"), lambda place: ["bench", "exported", *BENCH], lambda place: None
)


def embed(place: Path) -> None:
    """What the exported folder makes of two texts, as a user's program asks for it."""
    from quietformer.deployment.onnx_model import OnnxModel

    model = OnnxModel(place / "exported", threads=1)
    np.save(place / "embeddings.npy", model.encode(["A word.", "Two words, and more of them."]))


EMBEDDED = Subject(
    "exported folder, embedding", copied("exported"), lambda place: [], lambda place: np.load(place / "embeddings.npy").tolist(),
    call=embed,
)  # fmt: skip

CAUSAL = Subject(
    "causal model folder",
    copied("causal", "text.txt"),
    lambda place: ["quantize", "causal", *TEXT[:-1], "--calibration", "1", "--seeds", "1", *INSPECT],
    report_numbers,
)

GGUF = Subject(
    "GGUF file",
    copied("tiny.gguf", "text.txt"),
    lambda place: ["inspect", "tiny.gguf", *TEXT, *INSPECT],
    report_numbers,
)

VISION = Subject(
    "images", copied("vision", "images"),
    lambda place: ["inspect", "vision", "--images", "images", "--sequences", "4", "--no-interventions", *INSPECT], report_numbers,
)  # fmt: skip

SPEECH = Subject(
    "audio", copied("speech", "audio"),
    lambda place: ["inspect", "speech", "--audio", "audio", "--sequences", "2", "--no-interventions", *INSPECT], report_numbers,
)  # fmt: skip

VISION_MODEL = Subject("vision model folder", VISION.prepare, VISION.arguments, VISION.result)

SPEECH_MODEL = Subject("speech model folder", SPEECH.prepare, SPEECH.arguments, SPEECH.result)

TEXTS = Subject(
    "text", copied("plain", "text.txt"), lambda place: ["inspect", "plain", *TEXT, *INSPECT], report_numbers
)

RECIPE = Subject(
    "recipe", copied("recipe.yaml", "text.txt"),
    lambda place: ["train", "recipe.yaml", "--plan", "--no-measure", "--json", "out.json"], report_numbers,
)  # fmt: skip

STARTED = Subject(
    "recipe, started",
    copied("recipe.yaml", "text.txt"),
    lambda place: ["train", "recipe.yaml", "--out", "run"],
    lambda place: None,
)

TABLES = Subject(
    "tables to train on",
    copied("recipe.yaml", "text.txt", "table.csv", "table.jsonl", "table.parquet"),
    STARTED.arguments,
    STARTED.result,
)

STUDY = Subject(
    "study", copied("study.yaml", "recipe.yaml", "text.txt"), lambda place: ["sweep", "study.yaml", "--out", "out"],
    lambda place: None,
)  # fmt: skip

KILLED = Subject("killed run", copied("killed"), lambda place: ["train", "--out", "killed"], folder_weights("killed"))

FINISHED = Subject(
    "finished run", copied("finished"), lambda place: ["train", "--out", "finished"], folder_weights("finished")
)

SWEPT = Subject(
    "study folder", copied("swept", "study.yaml", "recipe.yaml", "text.txt"),
    lambda place: ["sweep", "study.yaml", "--out", "swept", "--retry"], study_rows,
)  # fmt: skip

OPTIONS = Subject(
    "options", copied("plain", "text.txt", "recipe.yaml", "study.yaml"), lambda place: ["variants"], lambda place: None
)

ALL = (
    PLAIN, SHARDED, OURS, QUANTIZED, PLAIN_CONVERTED, OURS_CONVERTED, VISION, SPEECH, TEXTS, RECIPE, STARTED, STUDY, KILLED,
    FINISHED, SWEPT, OPTIONS, SENTENCES, SENTENCES_CONVERTED, EXPORTED, EMBEDDED, CAUSAL, GGUF,
    VISION_MODEL, SPEECH_MODEL,
)  # fmt: skip
