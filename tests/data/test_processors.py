"""Images as the model's own processor prepares them, and without one as squares of [-1, 1]."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import BitImageProcessorPil, ViTImageProcessorPil

import quietformer as qf
from quietformer.config.options.data import CalibrationOptions
from quietformer.config.options.inspect import InspectOptions
from quietformer.data.batches_from_options import batches_of
from quietformer.data.calibration_data import calibration_data
from tests.tiny_models import build

PROCESSORS = {
    "crop": BitImageProcessorPil(
        size={"shortest_edge": 20}, crop_size={"height": 16, "width": 16}, image_mean=[0.4, 0.5, 0.6],
        image_std=[0.2, 0.3, 0.4],
    ),
    "stretch": ViTImageProcessorPil(size={"height": 16, "width": 16}, image_mean=[0.1] * 3, image_std=[0.7] * 3),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    build("vit").save_pretrained(tmp_path / "model")
    draw = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    for number in range(5):
        pixels = draw.integers(0, 256, (24, 30 + number, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number}.png")
    return tmp_path


@pytest.mark.parametrize("name", sorted(PROCESSORS))
def test_pixels_are_those_of_the_models_own_processor(folder, name):
    PROCESSORS[name].save_pretrained(folder / "model")
    model = qf.open_model(folder / "model")
    images = [Image.open(path) for path in sorted((folder / "images").glob("*.png"))]
    expected = torch.as_tensor(PROCESSORS[name](images, return_tensors="pt")["pixel_values"])
    found = batches_of(model, str(folder / "model"), InspectOptions(images=folder / "images", batch_size=2))
    torch.testing.assert_close(torch.cat([batch["pixel_values"] for batch in found.batches]), expected)
    options = CalibrationOptions(images=folder / "images", eval_images=folder / "images", sequences=5, calibration=1)
    data = calibration_data(model, str(folder / "model"), "images", options)
    torch.testing.assert_close(torch.cat([batch["pixel_values"] for batch in data.evaluation]), expected)


def test_digits_go_through_the_processor_too(folder):
    PROCESSORS["stretch"].save_pretrained(folder / "model")
    model = qf.open_model(folder / "model")
    (batch,) = batches_of(model, str(folder / "model"), InspectOptions(sequences=3)).batches
    assert batch["pixel_values"].shape == (3, 3, 16, 16)
    assert float(batch["pixel_values"].min()) == pytest.approx((0 - 0.1) / 0.7, abs=0.02)


def test_without_a_processor_images_are_squares_of_minus_one_to_one(folder):
    model = qf.open_model(folder / "model")
    found = batches_of(model, str(folder / "model"), InspectOptions(images=folder / "images"))
    pixels = found.batches[0]["pixel_values"]
    first = Image.open(folder / "images" / "0.png").resize((16, 16))
    torch.testing.assert_close(pixels[0], torch.from_numpy(np.asarray(first).copy()).permute(2, 0, 1) / 127.5 - 1)


def test_a_processor_that_does_not_load_or_fit_is_named(folder):
    model = qf.open_model(folder / "model")
    options = InspectOptions(images=folder / "images")
    (folder / "model" / "preprocessor_config.json").write_text('{"image_processor_type": "NoSuchProcessor"}')
    with pytest.raises(qf.QuietformerError, match=r"the image processor of .*model does not load"):
        batches_of(model, str(folder / "model"), options)
    uncropped = BitImageProcessorPil(size={"shortest_edge": 16}, do_center_crop=False)
    uncropped.save_pretrained(folder / "model")
    with pytest.raises(qf.QuietformerError, match=r"gives images of \d sizes"):
        batches_of(model, str(folder / "model"), options)
