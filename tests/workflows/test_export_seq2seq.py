"""`export` of encoder-decoders: speech and text, what `OnnxModel` writes then, and one line for what cannot be."""

from __future__ import annotations

import json

import numpy as np
import pytest
from transformers import AutoTokenizer, MarianMTModel

import quietformer as qf
from quietformer.data.audio_batches import read_wav
from tests.commands import fails
from tests.deployment.exports import small
from tests.deployment.seq2seq_models import POSITIONS, write_seq2seq
from tests.speech import RATE, SECONDS, whisper, write_speech


def test_a_speech_model_is_exported_whole_and_scored_by_its_words(run, tmp_path):
    whisper(tmp_path / "model")
    speech = write_speech(tmp_path / "audio")
    small = ("--sequences", 2, "--calibration", 1, "--batch-size", 2, "--no-timed")
    worse = ("--min-quality", "wer=0")  # lower is better, and noise is not words
    targets = ("--for", "quietformer,optimum,transformers.js")
    arguments = ("export", tmp_path / "model", tmp_path / "int8", "--audio", speech, *small, *targets)
    assert run(*arguments, "--no-search", *worse)[0] == 3
    assert not (tmp_path / "int8").exists()
    code, _, error = run(*arguments)
    assert code == 0, error
    report = json.loads((tmp_path / "int8" / "report.json").read_text())
    assert report["model"]["class_name"] == "WhisperForConditionalGeneration"
    (runtime,) = report["export"]["runtimes"]
    assert runtime["agreement"]["cosine"] > 0.99
    assert {*report["fp32"]} >= {"agreement", "wer"}
    assert report["real"]["wer"] is not None
    assert any(step["name"] == "smoothing" for step in report["steps"])
    assert {"preprocessor_config.json", "generation_config.json", "tokenizer.json"} <= {
        path.name for path in (tmp_path / "int8").iterdir()
    }
    for stem in ("encoder_model", "decoder_model_merged"):
        assert (tmp_path / "int8" / f"{stem}.onnx").read_bytes() == (
            tmp_path / "int8" / "onnx" / f"{stem}_quantized.onnx"
        ).read_bytes()
    code = {one["name"]: one["code"] for one in report["export"]["targets"]}
    assert "ORTModelForSpeechSeq2Seq" in code["optimum"]
    assert "'automatic-speech-recognition'" in code["transformers.js"]
    _writes_what_is_measured(tmp_path, speech)


def _writes_what_is_measured(place, speech):
    """Paths and samples are the same; a recording longer than the window is written of in pieces; mistakes are one line."""
    model, paths = qf.OnnxModel(place / "int8"), sorted(speech.glob("*.wav"))[:3]
    texts = model.generate(paths)
    samples = [read_wav(path)[0].numpy() for path in paths]
    assert model.generate(samples, sampling_rate=RATE, batch_size=1) == texts
    assert model.generate(str(paths[0])) == texts[0]
    window = np.pad(samples[0], (0, RATE * SECONDS - len(samples[0])))
    long = np.concatenate([window, samples[1]])
    assert model.generate(long) == model.generate(window) + texts[1]
    assert len(model.generate(samples[0], max_new_tokens=1)) < len(texts[0])
    for given, message in (
        (3, "give a text or a recording"), ([np.zeros((2, 2))], "samples of"), ("none.wav", "cannot be read as a wav file"),
        ([np.array([np.nan])], "no finite numbers"), (np.zeros(0), "a recording is the path"),
    ):  # fmt: skip
        with pytest.raises(qf.QuietformerError, match=message) as refused:
            model.generate(given)
        assert "\n" not in str(refused.value)
    with pytest.raises(qf.QuietformerError, match="knows one language"):
        model.generate(paths[0], language="de")
    (place / "int8" / "decoder_model_merged.onnx").unlink()
    with pytest.raises(qf.QuietformerError, match=r"it has encoder_model.onnx and no decoder_model_merged.onnx"):
        qf.OnnxModel(place / "int8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--runtime", "openvino"),
            "an encoder-decoder, which is written for onnxruntime only; leave out --runtime openvino",
        ),
        (("--for", "onnxruntime"), "--for onnxruntime: an encoder-decoder is two graphs"),
        (("--baselines",), "--baselines: other tools are not compared on encoder-decoders"),
        (("--for", "sentence-transformers"), "--for sentence-transformers"),
        (("--audio", "none"), "none is not a folder of audio"),
    ],
)
def test_what_an_encoder_decoder_cannot_have_is_one_line(run, tmp_path, words, message):
    whisper(tmp_path / "model")
    speech = () if "--audio" in words else ("--audio", write_speech(tmp_path / "audio", count=3))
    assert message in fails(run, "export", tmp_path / "model", tmp_path / "int8", *speech, *words)
    assert not (tmp_path / "int8").exists()


def test_a_model_that_translates_writes_what_transformers_does(tmp_path):
    source = write_seq2seq(tmp_path / "marian", "marian")
    report = qf.export(source, tmp_path / "int8", keep_fp32=True, **small(source))
    assert report.export.agreement.cosine > 0.98
    assert report.real["agreement"] > 0.5
    tokenizer, model = AutoTokenizer.from_pretrained(source), MarianMTModel.from_pretrained(source).eval()
    texts, wanted = ["Cats and clocks.", "More of rivers", "It ends."], []
    for text in texts:
        made = model.generate(
            tokenizer(text, return_tensors="pt")["input_ids"], max_new_tokens=12, do_sample=False, num_beams=1
        )
        wanted.append(tokenizer.decode(made[0], skip_special_tokens=True))
    fp32 = qf.OnnxModel(tmp_path / "int8", file="encoder_model_fp32.onnx")
    assert fp32.generate(texts, max_new_tokens=12) == fp32.generate(texts, max_new_tokens=12, batch_size=1) == wanted
    with pytest.raises(qf.QuietformerError, match=f"the model has {POSITIONS} positions; shorten it"):
        fp32.generate("word " * 2 * POSITIONS)
    with pytest.raises(qf.QuietformerError, match="has an encoder and a decoder, which bench does not measure"):
        qf.bench(tmp_path / "int8")
    with pytest.raises(qf.QuietformerError, match="texts are a text or a list of texts, got int"):
        fp32.generate([3])
