"""Export of families with more than a stack of layers: what cannot be is told before the work, and the rest agrees."""

from __future__ import annotations

import pytest
import torch
from transformers import BartModel, MPNetConfig, MPNetModel, T5Model

import quietformer as qf
from quietformer.config.options.export import OnnxOptions
from quietformer.config.quantization import QuantSpec
from quietformer.data.tokenizers import train_tokenizer
from quietformer.deployment.onnx_export import export_onnx
from quietformer.errors import QuietformerError
from quietformer.quant.calibration import calibrate_, quantize_
from tests.deployment.exports import TEXTS
from tests.families.tiny import tiny


@pytest.mark.parametrize(("name", "headless"), [("t5", T5Model), ("bart", BartModel)])
def test_of_an_encoder_decoder_without_a_head_the_encoder_is_asked_for(name, headless, tmp_path):
    model = headless(tiny(name).model.config)
    with pytest.raises(
        QuietformerError, match=r"no head that writes tokens; its encoder can.*get_encoder\(\)"
    ) as refused:
        qf.export(model, tmp_path / "out")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_a_model_of_texts_and_images_at_once_is_told_to_give_a_part(tmp_path):
    tiny("clip").model.save_pretrained(tmp_path / "clip")
    train_tokenizer(TEXTS, vocabulary=300, characters=10_000).save_pretrained(tmp_path / "clip")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    with pytest.raises(QuietformerError, match=r"CLIPModel has no single table of token embeddings.*text_model"):
        qf.export(tmp_path / "clip", tmp_path / "out", texts=tmp_path / "texts.txt", sequences=4, length=12)
    assert not (tmp_path / "out").exists()


def test_relative_positions_are_those_of_every_length(tmp_path):
    """MPNet computes its position bias from the length: the graph has to do so too, in fp32 and in INT8."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    model = MPNetModel(MPNetConfig(vocab_size=99, **sizes)).eval()
    with torch.no_grad():
        model.encoder.relative_attention_bias.weight.mul_(50)
    batches = [
        {"input_ids": torch.randint(5, 99, (3, length)), "attention_mask": torch.ones(3, length, dtype=torch.int64)}
        for length in (12, 40, 7)
    ]
    batches[1]["attention_mask"][2, 9:] = 0
    quantize_(model, QuantSpec(), batches[0])
    calibrate_(model, batches)
    made = export_onnx(model, tmp_path / "out", batches, None, OnnxOptions(timed=False, runtime="onnxruntime"))
    assert made.fp32_difference < 1e-5
    assert made.runtimes[0].agreement.cosine > 0.9999
