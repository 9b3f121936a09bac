"""Images and recordings given to an exported model are prepared as the model's own processor prepares them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    AutoFeatureExtractor,
    AutoModel,
    AutoModelForCTC,
    AutoModelForImageClassification,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessorPil,
)

import quietformer as qf
from quietformer.errors import QuietformerError
from tests.speech import RATE, wav2vec2, whisper, write_speech

SMALL = {
    "sequences": 4, "calibration": 1, "batch_size": 2, "timed": False, "search": False, "keep_fp32": True,
    "runtime": "onnxruntime",
}  # fmt: skip


@pytest.fixture(scope="module")
def seeing(tmp_path_factory):
    """A small image classifier with images: its folder, its export in fp32, and paths."""
    place = tmp_path_factory.mktemp("seeing")
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=8
    )
    ViTForImageClassification(config).save_pretrained(place / "source")
    ViTImageProcessorPil(size={"height": 16, "width": 16}, image_mean=[0.2] * 3).save_pretrained(place / "source")
    draw = np.random.default_rng(0)
    paths = [place / f"{number}.png" for number in range(3)]
    for path in paths:
        Image.fromarray(draw.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(path)
    qf.export(place / "source", place / "out", **SMALL)
    return place / "source", qf.OnnxModel(place / "out", file="model_fp32.onnx"), paths


def test_images_give_what_transformers_gives(seeing):
    source, model, paths = seeing
    images = [Image.open(path) for path in paths]
    with torch.no_grad():
        pixels = ViTImageProcessorPil.from_pretrained(source)(images, return_tensors="pt")["pixel_values"]
        wanted = AutoModelForImageClassification.from_pretrained(source).eval()(pixels).logits
    torch.testing.assert_close(model(paths, batch_size=2), wanted, atol=1e-5, rtol=1e-4)
    for given in (str(paths[1]), images[1], np.asarray(images[1])):
        torch.testing.assert_close(model(given), wanted[1], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (torch.zeros(3, 16, 16), "not an image: torch.float32 of shape"),
        ([1], "not an image: int"),
        (np.zeros((4, 4, 3)), "not an image: float64"),
        ("nowhere.png", "nowhere.png"),
    ],
)
def test_what_is_no_image_is_told(seeing, given, said):
    with pytest.raises(QuietformerError, match=said):
        seeing[1](given)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    return write_speech(tmp_path_factory.mktemp("audio"))


def test_recordings_give_what_transformers_gives(recordings, tmp_path):
    source = wav2vec2(tmp_path / "source")
    qf.export(source, tmp_path / "out", audio=recordings, **SMALL)
    model, extractor = (
        qf.OnnxModel(tmp_path / "out", file="model_fp32.onnx"),
        AutoFeatureExtractor.from_pretrained(source),
    )
    torch_model = AutoModelForCTC.from_pretrained(source).eval()
    samples = [0.1 * np.sin(np.arange(count) / 9).astype(np.float32) for count in (4000, 6500)]
    for one, found in zip(samples, model(samples), strict=True):
        with torch.no_grad():
            wanted = torch_model(extractor(one, sampling_rate=RATE, return_tensors="pt")["input_values"]).logits[0]
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-3)
    path = sorted(recordings.glob("*.wav"))[0]
    torch.testing.assert_close(model([path])[0], model(path))


def test_a_recording_that_is_too_long_for_the_encoder_is_told(recordings, tmp_path):
    whisper(tmp_path / "source")
    encoder = AutoModel.from_pretrained(tmp_path / "source").get_encoder()
    encoder.save_pretrained(tmp_path / "encoder")
    AutoFeatureExtractor.from_pretrained(tmp_path / "source").save_pretrained(tmp_path / "encoder")
    qf.export(qf.open_model(tmp_path / "encoder"), tmp_path / "out", audio=recordings, **SMALL)
    model = qf.OnnxModel(tmp_path / "out")
    with pytest.raises(QuietformerError, match=r"lasts 2.0 seconds, and the model takes 1.0 seconds at once; cut it"):
        model(np.zeros(2 * RATE, np.float32))
