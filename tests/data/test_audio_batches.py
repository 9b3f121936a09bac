"""Audio as batches: what the feature extractor makes of it, whatever the file looks like, with its transcripts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor

import quietformer as qf
from quietformer.architectures.forward import AUDIBLE, token_mask
from quietformer.config.options.data import CalibrationOptions
from quietformer.config.options.inspect import InspectOptions
from quietformer.data.audio_batches import (
    audio_batches,
    folder_windows,
    read_wav,
    resampled,
    transcript_of,
    window_samples,
)
from quietformer.data.batches_from_options import batches_of
from quietformer.data.calibration_data import calibration_data
from tests.speech import RATE, SECONDS, WORDS, wav2vec2, whisper, write_speech, write_wav


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [1, 2])
def test_samples_of_any_width_are_between_minus_one_and_one(tmp_path, width, channels):
    values = np.linspace(-0.9, 0.9, 200)
    write_wav(tmp_path / "a.wav", values, width=width, channels=channels, rate=8000)
    samples, rate = read_wav(tmp_path / "a.wav")
    assert rate == 8000
    np.testing.assert_allclose(samples.numpy(), values, atol=2.0 ** (2 - 8 * width) + 1e-7)


@pytest.mark.parametrize("rate", [8000, 22_050, 44_100])
def test_resampling_keeps_what_both_rates_hold_and_drops_the_rest(rate):
    def tones(at, *hertz):
        return sum(np.sin(2 * np.pi * pitch * np.arange(at // 10) / at) for pitch in hertz)

    too_high = (9000,) if rate > 2 * 9000 else ()
    found = resampled(torch.from_numpy(tones(rate, 300, 1230, 3010, *too_high)).float(), rate, RATE)
    np.testing.assert_allclose(found.numpy(), tones(RATE, 300, 1230, 3010), atol=1e-5)


def test_features_are_those_of_the_models_own_extractor(tmp_path):
    model = qf.open_model(whisper(tmp_path / "model"))
    write_speech(tmp_path / "audio", count=3)
    options = InspectOptions(audio=tmp_path / "audio", batch_size=2)
    found = batches_of(model, str(tmp_path / "model"), options)
    extractor = WhisperFeatureExtractor.from_pretrained(tmp_path / "model")
    recordings = [read_wav(path)[0].numpy() for path in sorted((tmp_path / "audio").glob("*.wav"))]
    expected = extractor(recordings, sampling_rate=RATE, return_tensors="pt")["input_features"]
    assert [len(batch["input_features"]) for batch in found.batches] == [2, 1]
    assert torch.equal(torch.cat([batch["input_features"] for batch in found.batches]), expected)
    assert found.info.source == str(tmp_path / "audio")


def test_long_recordings_are_cut_and_their_transcripts_left_out(tmp_path):
    extractor = WhisperFeatureExtractor(feature_size=8, chunk_length=SECONDS)
    write_wav(tmp_path / "long.wav", 0.1 * np.ones(int(2.5 * RATE)))
    write_wav(tmp_path / "short.wav", 0.1 * np.ones(RATE // 2))
    for name in ("long", "short"):
        (tmp_path / f"{name}.txt").write_text(f"what {name} says")
    windows = folder_windows(tmp_path, extractor, 10)
    assert [len(window.samples) for window in windows] == [RATE, RATE, RATE // 2, RATE // 2]
    assert [window.transcript for window in windows] == [None, None, None, "what short says"]
    assert len(folder_windows(tmp_path, extractor, 2)) == 2
    assert window_samples(extractor) == RATE * SECONDS
    (batch,) = audio_batches(windows, extractor, batch_size=4)
    mask = token_mask(batch, 50)
    assert mask is not None
    assert mask.sum(1).tolist() == [50, 50, 25, 25]


def test_transcripts_of_librispeech_and_sphinx(tmp_path):
    write_wav(tmp_path / "84-1.wav", np.zeros(9))
    assert transcript_of(tmp_path / "84-1.wav") is None
    (tmp_path / "transcription").write_text("<s> one two </s> (84-1)\n<s> three </s> (84-2)\n")
    assert transcript_of(tmp_path / "84-1.wav") == "one two"
    (tmp_path / "84.trans.txt").write_text("84-0 ZERO\n84-1 FOUR FIVE\n")
    assert transcript_of(tmp_path / "84-1.wav") == "FOUR FIVE"
    (tmp_path / "84-1.txt").write_text("six\n")
    assert transcript_of(tmp_path / "84-1.wav") == "six"


def test_calibration_and_evaluation_are_other_recordings(tmp_path):
    model = qf.open_model(whisper(tmp_path / "model"))
    write_speech(tmp_path / "audio")
    options = CalibrationOptions(audio=tmp_path / "audio", sequences=2, calibration=2, batch_size=2)
    data = calibration_data(model, str(tmp_path / "model"), "embedding", options)

    def rows(batches):
        return {tuple(row.flatten().tolist()) for batch in batches for row in batch["input_features"]}

    assert len(rows(data.evaluation)) == 2
    assert len(rows(data.calibration(0))) == 4
    assert not rows(data.evaluation) & rows(data.calibration(0))
    assert set(data.transcripts or []) < set(WORDS)
    apart = options.model_copy(update={"eval_audio": write_speech(tmp_path / "other", count=2, transcripts=False)})
    data = calibration_data(model, str(tmp_path / "model"), "embedding", apart)
    assert data.transcripts is None
    assert len(rows(data.calibration(0))) == 4


def test_raw_samples_are_padded_alike(tmp_path):
    model = qf.open_model(wav2vec2(tmp_path / "model"))
    write_speech(tmp_path / "audio", count=3)
    options = InspectOptions(audio=tmp_path / "audio", batch_size=2)
    batches = batches_of(model, str(tmp_path / "model"), options).batches
    assert len({batch["input_values"].shape[1] for batch in batches}) == 1
    assert max(float(batch[AUDIBLE].max()) for batch in batches) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda place: None, r"not a folder of audio"),
        (lambda place: place.mkdir(), r"holds no .wav files"),
        (lambda place: (place.mkdir(), (place / "a.wav").write_text("RIFF")), r"a.wav cannot be read as a wav file"),
        (lambda place: write_wav(place / "a.wav", []), r"a.wav holds no samples"),
    ],
)
def test_bad_audio_is_named(tmp_path, make, message):
    make(tmp_path / "audio")
    extractor = WhisperFeatureExtractor(feature_size=8, chunk_length=SECONDS)
    with pytest.raises(qf.QuietformerError, match=message):
        folder_windows(tmp_path / "audio", extractor, 3)


def test_audio_models_say_what_they_need(tmp_path):
    model = qf.open_model(whisper(tmp_path / "model"))
    with pytest.raises(qf.QuietformerError, match=r"takes audio; give --audio DIR with .wav files"):
        batches_of(model, str(tmp_path / "model"), InspectOptions())
    with pytest.raises(qf.QuietformerError, match=r"takes audio; give --audio DIR"):
        batches_of(model, str(tmp_path / "model"), InspectOptions(images=tmp_path))
    (tmp_path / "model" / "preprocessor_config.json").unlink()
    write_speech(tmp_path / "audio", count=1)
    with pytest.raises(qf.QuietformerError, match=r"has no feature extractor that loads"):
        batches_of(model, str(tmp_path / "model"), InspectOptions(audio=tmp_path / "audio"))
    with pytest.raises(qf.QuietformerError, match=r"--eval-audio needs --audio"):
        CalibrationOptions(eval_audio=tmp_path)
    with pytest.raises(qf.QuietformerError, match=r"--eval-audio goes with --audio, not with images"):
        CalibrationOptions(eval_audio=tmp_path, images=tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sampling_rate", [16000]),
        ("sampling_rate", 0),
        ("sampling_rate", "16000"),
        ("n_samples", -1),
        ("n_samples", 2.5),
    ],
)
def test_settings_of_the_extractor_that_make_no_sense_are_told(tmp_path, name, value):
    extractor = WhisperFeatureExtractor(feature_size=8, chunk_length=SECONDS)
    setattr(extractor, name, value)
    with pytest.raises(qf.QuietformerError, match=f"has {name} .*put preprocessor_config.json right"):
        folder_windows(tmp_path, extractor, 1)
