"""Audio of a folder as batches of what a model's feature extractor makes of it, with transcripts where there are some."""

# N samples of a recording

from __future__ import annotations

import re
import wave
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quietformer.architectures.forward import AUDIBLE, Batch
from quietformer.data.text_batches import TEXT_REMEDY
from quietformer.errors import QuietformerError, in_one_line
from quietformer.files import check_regular

SECONDS = 10.0
"""The longest window for a model whose feature extractor names none."""

RATES = (1000, 1_000_000)
"""Samples a second that a recording can have."""

ENDLESS = 2**31 - 2**16
"""Bytes from which on a size in a header says only that nobody knew it."""

SHORTEST = 0.1
"""Seconds: what is left of a recording after its last whole window is dropped if it is shorter."""


@dataclass(frozen=True)
class AudioWindow:
    """Samples of [-1, 1] at the extractor's rate; what is said in them, if a whole recording with a transcript fits."""

    samples: Tensor
    transcript: str | None = None


def folder_windows(folder: Path, extractor: Any, count: int) -> list[AudioWindow]:
    """Up to `count` windows of the recordings in a folder and its subfolders, in order of name."""
    rate = rate_of(extractor)
    size = window_samples(extractor)
    found: list[AudioWindow] = []
    for path in audio_paths(folder):
        samples, own_rate = read_wav(path)
        samples = resampled(samples, own_rate, rate)
        pieces = [piece for piece in torch.split(samples, size) if len(piece) >= SHORTEST * rate] or [samples]
        words = transcript_of(path) if len(pieces) == 1 else None
        found += [AudioWindow(piece, words) for piece in pieces]
        if len(found) >= count:
            break
    return found[:count]


def rate_of(extractor: Any) -> int:
    """Samples a second that the extractor takes."""
    return _whole_number(extractor, "sampling_rate", *RATES)


def window_samples(extractor: Any) -> int:
    """How many samples the extractor takes at once: Whisper's 30 seconds, or ten."""
    if getattr(extractor, "n_samples", None):
        return _whole_number(extractor, "n_samples", 1, ENDLESS)
    return int(SECONDS * rate_of(extractor))


def _whole_number(extractor: Any, name: str, least: int, most: int) -> int:
    found = getattr(extractor, name, None)
    if type(found) is not int or not least <= found <= most:
        raise QuietformerError(
            f"the model's feature extractor has {name} {repr(found)[:40]}, which is no whole number from {least:,} "
            f"to {most:,}; put preprocessor_config.json right"
        )
    return found


def audio_batches(windows: list[AudioWindow], extractor: Any, *, batch_size: int) -> Iterator[Batch]:
    """What the extractor makes of the windows; all are padded to the same length, since graphs may fix it."""
    own = getattr(extractor, "n_samples", None)
    size = own or max(len(window.samples) for window in windows)
    padding: dict[str, Any] = {} if own else {"padding": "max_length", "max_length": size}
    for start in range(0, len(windows), batch_size):
        given = [window.samples.numpy() for window in windows[start : start + batch_size]]
        try:
            made = extractor(given, sampling_rate=extractor.sampling_rate, return_tensors="pt", **padding)
        except Exception as error:  # whatever a setting that makes no sense leads to
            raise QuietformerError(
                f"the model's feature extractor does not take a recording: {in_one_line(error, 200)}; "
                "put preprocessor_config.json right"
            ) from error
        audible = torch.tensor([len(samples) / size for samples in given])
        yield {name: tensor for name, tensor in made.items() if isinstance(tensor, Tensor)} | {AUDIBLE: audible}


def audio_paths(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise QuietformerError(f"{folder} is not a folder of audio")
    paths = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() == ".wav"]
    if not paths:
        raise QuietformerError(f"{folder} holds no .wav files; convert others, e.g. ffmpeg -i speech.flac speech.wav")
    return paths


def read_wav(path: Path) -> tuple[Tensor, int]:
    """The mean of the channels in [-1, 1], and samples per second."""
    check_regular(path)
    try:
        with wave.open(str(path), "rb") as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            frames = file.getnframes()
            data = file.readframes(frames)
        if not RATES[0] <= rate <= RATES[1] or width not in (1, 2, 3, 4):
            raise ValueError(f"{rate} samples a second of {width} bytes")
        # A recorder that was cut off leaves a size that means "to the end".
        if len(data) != frames * width * channels and frames * width * channels < ENDLESS:
            raise ValueError(f"{frames} samples announced, {len(data) // (width * channels)} there: it is cut short")
        data = data[: len(data) // (width * channels) * width * channels]
    except Exception as error:  # a damaged header leads to errors of many kinds
        raise QuietformerError(
            f"{path} cannot be read as a wav file: {in_one_line(error)}; "
            "convert it, e.g. ffmpeg -i speech.wav -c:a pcm_s16le converted.wav"
        ) from None
    if width == 3:  # 24 bits, as the upper three bytes of 32
        padded = np.zeros((len(data) // 3, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        values = padded.view("<i4")[:, 0].astype(np.float32) / 2.0**31
    elif width == 1:
        values = np.frombuffer(data, np.uint8).astype(np.float32) / 128 - 1
    else:
        values = np.frombuffer(data, f"<i{width}").astype(np.float32) / 2.0 ** (8 * width - 1)
    if not len(values):
        raise QuietformerError(f"{path} holds no samples; remove it")
    return torch.from_numpy(values.reshape(-1, channels).mean(1).astype(np.float32)), rate


def resampled(samples_N: Tensor, rate: int, wanted: int) -> Tensor:
    """At another number of samples per second, by its spectrum: what the lower rate cannot hold is dropped."""
    if rate == wanted:
        return samples_N
    length = max(1, round(len(samples_N) * wanted / rate))
    spectrum = torch.fft.rfft(samples_N.double())
    kept = torch.zeros(length // 2 + 1, dtype=spectrum.dtype)
    shared = min(len(spectrum), len(kept))
    kept[:shared] = spectrum[:shared]
    samples: Tensor = torch.fft.irfft(kept, n=length) * (length / len(samples_N))
    return samples.float()


# ---- transcripts
def transcript_of(path: Path) -> str | None:
    """What is said in a recording: a .txt file of its name, or its line in a list (LibriSpeech's or CMU Sphinx's)."""
    if (own := path.with_suffix(".txt")).is_file():
        return _read(own).strip()
    for file in sorted((*path.parent.glob("*.trans.txt"), *path.parent.glob("*transcription"))):
        for line in _read(file).splitlines():
            if (words := _words_of(line, path.stem)) is not None:
                return words
    return None


def _words_of(line: str, name: str) -> str | None:
    """`name words ...` or `<s> words ... </s> (name)`."""
    if line.strip().endswith(f"({name})"):
        return re.sub(r"</?s>", " ", line.strip().removesuffix(f"({name})")).strip()
    first, _, words = line.strip().partition(" ")
    return words.strip() if first == name and words else None


def _read(path: Path) -> str:
    check_regular(path)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise QuietformerError(f"{path} cannot be read as text: {in_one_line(error)}; {TEXT_REMEDY}") from None
