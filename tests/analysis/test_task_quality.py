"""What models are used for: retrieval and transcripts, in torch and in ONNX Runtime, against other ways to compute them."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

import quietformer as qf
from quietformer.analysis.output_quality import known_item_ndcg, word_error_rate
from quietformer.config.tasks import METRICS
from quietformer.data.audio_batches import read_wav
from quietformer.data.tokenizers import tokenizer_of
from quietformer.results.quality import Metrics
from tests.speech import RATE, WORDS, wav2vec2, whisper, write_speech


# ---- retrieval
@pytest.mark.parametrize("noise", [0.0, 0.5, 2.0])
def test_ndcg_is_that_of_scikit_learn(noise):
    generator = torch.Generator().manual_seed(3)
    documents = torch.randn(40, 6, generator=generator)
    queries = documents + noise * torch.randn(40, 6, generator=generator)
    cosines = torch.nn.functional.cosine_similarity(queries[:, None], documents[None], dim=-1)
    assert known_item_ndcg(queries, documents) == pytest.approx(ndcg_score(np.eye(40), cosines.numpy(), k=10), abs=1e-6)


def test_embeddings_that_are_all_alike_or_broken_find_nothing():
    assert known_item_ndcg(torch.ones(40, 3), torch.ones(40, 3)) == 0
    assert known_item_ndcg(torch.full((40, 3), torch.nan), torch.ones(40, 3)) == 0


# ---- word error rate
def distance(one, other):
    """Levenshtein's distance as it is defined."""

    @functools.cache
    def of(i, j):
        if i == 0 or j == 0:
            return i + j
        return min(of(i - 1, j) + 1, of(i, j - 1) + 1, of(i - 1, j - 1) + (one[i - 1] != other[j - 1]))

    return of(len(one), len(other))


words = st.lists(st.sampled_from(["a", "b", "c", "don't"]), max_size=7)


@given(st.lists(st.tuples(words, words), min_size=1, max_size=4))
def test_word_error_rate_is_the_edits_over_the_words_spoken(pairs):
    spoken = sum(len(said) for _, said in pairs)
    expected = sum(distance(tuple(text), tuple(said)) for text, said in pairs) / max(1, spoken)
    found = word_error_rate([" ".join(text) for text, _ in pairs], [" ".join(said) for _, said in pairs])
    assert found == pytest.approx(expected)


def test_case_and_punctuation_do_not_count_as_errors():
    assert word_error_rate([" Cold-hearted, he DOESN'T care."], ["cold hearted he doesn't care"]) == 0
    assert word_error_rate(["he was not old"], ["he was not ill disposed"]) == 2 / 5
    assert word_error_rate(["und für größe"], ["UND FÜR GRÖSSE"]) == 0


# ---- speech models
def test_the_word_error_rate_of_a_speech_model_is_that_of_its_own_generation(tmp_path):
    whisper(tmp_path / "model")
    write_speech(tmp_path / "audio", count=3)
    speech = write_speech(tmp_path / "other", count=4)
    report = qf.quantize(
        tmp_path / "model",
        audio=tmp_path / "audio",
        eval_audio=speech,
        sequences=4,
        calibration=1,
        batch_size=2,
        seeds=1,
    )
    assert report.model.class_name == "WhisperEncoder"
    model = WhisperForConditionalGeneration.from_pretrained(tmp_path / "model").eval()
    extractor = WhisperFeatureExtractor.from_pretrained(tmp_path / "model")
    tokenizer = tokenizer_of(str(tmp_path / "model"))
    features = extractor(
        [read_wav(path)[0].numpy() for path in sorted(speech.glob("*.wav"))], sampling_rate=RATE, return_tensors="pt"
    )
    room = 2 * max(len(tokenizer(text)["input_ids"]) for text in WORDS[:4])
    tokens = model.generate(**features, do_sample=False, num_beams=1, max_new_tokens=room)
    expected = word_error_rate(tokenizer.batch_decode(tokens, skip_special_tokens=True), WORDS[:4])
    assert report.fp32.wer == pytest.approx(expected)
    assert report.quantized.wer is not None


def test_a_ctc_model_is_scored_by_the_letters_of_its_logits(tmp_path):
    model = qf.open_model(wav2vec2(tmp_path / "model"))
    speech = write_speech(tmp_path / "audio")
    report = qf.quantize(
        tmp_path / "model", audio=speech, eval_audio=speech, sequences=6, calibration=1, batch_size=6, seeds=1
    )
    samples = [read_wav(path)[0].numpy() for path in sorted(speech.glob("*.wav"))]
    from transformers import AutoFeatureExtractor

    extractor = AutoFeatureExtractor.from_pretrained(tmp_path / "model")
    with torch.no_grad():
        logits = model(**extractor(samples, sampling_rate=RATE, padding=True, return_tensors="pt")).logits
    texts = tokenizer_of(str(tmp_path / "model")).batch_decode(logits.argmax(-1))
    assert report.primary == "agreement"
    assert report.fp32.wer == pytest.approx(word_error_rate(texts, WORDS))


def test_without_transcripts_or_a_decoder_there_is_no_word_error_rate(tmp_path):
    whisper(tmp_path / "model")
    encoder = WhisperForConditionalGeneration.from_pretrained(tmp_path / "model").get_encoder()
    encoder.save_pretrained(tmp_path / "encoder")
    WhisperFeatureExtractor.from_pretrained(tmp_path / "model").save_pretrained(tmp_path / "encoder")
    small = {"sequences": 3, "calibration": 1, "batch_size": 3, "seeds": 1}
    silent = write_speech(tmp_path / "silent", transcripts=False)
    assert "wer" not in qf.quantize(tmp_path / "model", audio=silent, **small).fp32.names()
    said = write_speech(tmp_path / "said")
    assert "wer" not in qf.quantize(tmp_path / "encoder", audio=said, **small).fp32.names()


def test_every_metric_belongs_to_a_task():
    assert {metric for metrics in METRICS.values() for metric in metrics} == set(Metrics.model_fields)
