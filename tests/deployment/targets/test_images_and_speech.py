"""Models of images and of speech keep what makes their inputs, and give what torch gives."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForCTC, AutoModelForImageClassification, ViTConfig, ViTForImageClassification
from transformers import ViTImageProcessorPil as Processor

import quietformer as qf
from quietformer.deployment.shipment import model_to_ship
from quietformer.deployment.target import chosen_targets
from quietformer.errors import QuietformerError
from tests.speech import wav2vec2, write_speech

SMALL = {"sequences": 4, "calibration": 1, "batch_size": 2, "timed": False, "search": False}
LABELS = {0: "cat", 1: "dog", 2: "neither"}


def written(folder):
    return json.loads((folder / "export.json").read_text())


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images") / "source"
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=8,
        id2label=LABELS,
    )  # fmt: skip
    ViTForImageClassification(config).save_pretrained(folder)
    Processor(size={"height": 16, "width": 16}, image_mean=[0.2] * 3).save_pretrained(folder)
    return folder


def test_an_image_classifier_keeps_its_preprocessor_and_labels(classifier, tmp_path):
    out = tmp_path / "out"
    qf.export(classifier, out, targets="quietformer,onnxruntime,optimum,transformers.js", keep_fp32=True, **SMALL)
    name = "preprocessor_config.json"
    assert json.loads((out / name).read_text()) == json.loads((classifier / name).read_text())
    codes = {one["name"]: one["code"] for one in written(out)["targets"]}
    assert "ORTModelForImageClassification" in codes["optimum"]
    assert "pipeline('image-classification'" in codes["transformers.js"]
    model = qf.OnnxModel(out, file="onnx/model.onnx")
    pixels = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        wanted = AutoModelForImageClassification.from_pretrained(classifier).eval()(pixels).logits
    torch.testing.assert_close(model(pixel_values=pixels), wanted, atol=1e-5, rtol=1e-4)
    assert model.labels == list(LABELS.values())
    with pytest.raises(QuietformerError, match="call the model instead of encode"):
        model.encode(["a text"])


def test_clients_of_texts_are_not_meant_for_images(classifier):
    found = model_to_ship(qf.open_model(classifier), classifier)
    assert {target.name for target in chosen_targets((), found)} == {"onnxruntime", "optimum", "quietformer"}


def test_a_speech_model_keeps_its_feature_extractor_and_letters(tmp_path):
    source = wav2vec2(tmp_path / "source")
    audio = write_speech(tmp_path / "audio")
    qf.export(source, tmp_path / "out", audio=audio, runtime="onnxruntime", keep_fp32=True, **SMALL)
    for name in ("preprocessor_config.json", "vocab.json"):
        assert json.loads((tmp_path / "out" / name).read_text()) == json.loads((source / name).read_text())
    codes = {one["name"]: one["code"] for one in written(tmp_path / "out")["targets"]}
    assert "ORTModelForCTC" in codes["optimum"]
    assert "AutoFeatureExtractor" in codes["onnxruntime"]
    samples = torch.randn(2, 8000)
    with torch.no_grad():
        wanted = AutoModelForCTC.from_pretrained(source).eval()(samples).logits
    found = qf.OnnxModel(tmp_path / "out", file="model_fp32.onnx")(input_values=samples)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-3)
