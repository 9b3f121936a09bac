"""Text, photos and speech to measure models on, from packages by name. The same files on every machine.

data/wiki-like text is not among them: English text comes with the library.
"""

from __future__ import annotations

import itertools
import re
import wave
from pathlib import Path
from typing import Any

import numpy as np
import sklearn.datasets

from experiments.int8.packages import OLD_WHEEL, SDIST, from_npm, from_pypi  # noqa: F401

Samples = np.ndarray[Any, np.dtype[np.int16]]

PHOTOS = (
    "astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png", "rocket.jpg", "brick.png", "gravel.png",
    "camera.png", "coins.png", "retina.jpg",
)  # fmt: skip
OTHER_PHOTOS = ("grass.png", "hubble_deep_field.jpg", "moon.png", "clock_motion.png", "ihc.png")
"""Photos to evaluate on, with scikit-learn's two; crops of the others are to calibrate on."""

CROPS, SIDE = 20, 256
RATE = 16_000


def write_data(folder: Path, cache: Path) -> str:
    """Photos, speech and Korean text, each in a part to calibrate on and another to evaluate on."""
    return "; ".join([_photos(folder, cache), _speech(folder, cache), _korean(folder, cache)])


# ---- photos
def _photos(folder: Path, cache: Path) -> str:
    package = from_pypi("scikit-image==0.19.3", cache, *OLD_WHEEL) / "skimage" / "data"
    samples = Path(sklearn.datasets.__file__).parent / "images"
    parts = {
        "photos": [package / name for name in PHOTOS],
        "photos-evaluation": [
            *(package / name for name in OTHER_PHOTOS),
            samples / "china.jpg",
            samples / "flower.jpg",
        ],
    }
    counts = [_crops(paths, folder / name) for name, paths in parts.items()]
    return f"{counts[0]} + {counts[1]} crops of photos"


def _crops(paths: list[Path], folder: Path) -> int:
    """Random squares of each photo, some mirrored: deterministic, since the generator is seeded by the photo's name."""
    from PIL import Image

    folder.mkdir(parents=True)
    for path in paths:
        photo = Image.open(path).convert("RGB")
        draw = np.random.default_rng(list(path.stem.encode()))
        for number in range(CROPS):
            side = int(min(photo.size) * draw.uniform(0.4, 1.0))
            left, top = (int(draw.integers(length - side + 1)) for length in photo.size)
            crop = photo.crop((left, top, left + side, top + side)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
            if draw.random() < 0.5:
                crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            crop.save(folder / f"{path.stem}-{number:02d}.png")
    return len(paths) * CROPS


# ---- speech
def _speech(folder: Path, cache: Path) -> str:
    """Five read sentences and all pairs of them with transcripts to evaluate on; other recordings to calibrate on."""
    package = from_pypi("pocketsphinx==5.1.1", cache, *SDIST) / "pocketsphinx-5.1.1" / "test"
    read = [(_samples(path), path.with_suffix(".txt").read_text(encoding="utf-8").strip())
            for path in sorted((package / "data" / "librivox").glob("*.wav"))]  # fmt: skip
    pause = np.zeros(RATE // 2, np.int16)
    said = [*read, *((np.concatenate([a, pause, b]), f"{x} {y}") for (a, x), (b, y) in itertools.permutations(read, 2))]
    for number, (samples, words) in enumerate(said):
        _write_wav(folder / "speech-evaluation" / f"librivox-{number:02d}.wav", samples)
        (folder / "speech-evaluation" / f"librivox-{number:02d}.txt").write_text(words + "\n", encoding="utf-8")
    others = [_samples(path) for path in _other_recordings(package)]
    made = [*others, *(np.concatenate([a, pause, b]) for a, b in itertools.permutations(others, 2))]
    for number, samples in enumerate(made):
        _write_wav(folder / "speech" / f"recording-{number:03d}.wav", samples)
    return f"{len(made)} recordings + {len(said)} with transcripts"


def _other_recordings(test: Path) -> list[Path]:
    data = test / "data"
    return [
        *sorted((data / "cards").glob("*.wav")), *sorted((data / "forever").glob("*.wav")),
        data / "goforward.raw", data / "numbers.raw", data / "something.raw",
    ]  # fmt: skip


def _samples(path: Path) -> Samples:
    """16-bit samples at 16 kHz, as a wav file or as they are."""
    if path.suffix == ".raw":
        return np.fromfile(path, np.int16)
    with wave.open(str(path), "rb") as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2), (path, file.getparams())
        return np.frombuffer(file.readframes(file.getnframes()), np.int16)


def _write_wav(path: Path, samples: Samples) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.tobytes())


# ---- Korean text
def _korean(folder: Path, cache: Path) -> str:
    """South Korea's constitution, an article a line, to calibrate on; ten bills to evaluate on."""
    corpus = from_pypi("konlpy==0.6.0", cache) / "konlpy" / "data" / "corpus"
    constitution = (corpus / "kolaw" / "constitution.txt").read_text(encoding="utf-8")
    articles = _lines(re.split(r"\n(?=\s*제\d+[조장절])", constitution))
    bills = _lines(
        block
        for path in sorted((corpus / "kobill").glob("*.txt"))
        for block in re.split(r"(?<=[.])\s*\n\s*\n", path.read_text(encoding="utf-8"))
    )
    for name, lines in (("korean.txt", articles), ("korean-evaluation.txt", bills)):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return f"{len(articles)} + {len(bills)} paragraphs of Korean"


def _lines(blocks: Any) -> list[str]:
    """Paragraphs of mostly Hangul, each on one line, each once; tables and page numbers are left out."""
    joined = (" ".join(block.split()) for block in blocks)
    return list(dict.fromkeys(line for line in joined if len(line) > 40 and "---" not in line and _is_korean(line)))


def _is_korean(line: str) -> bool:
    return len(re.findall(r"[가-힣]", line)) > 0.5 * len(line)
