"""Texts as sentence-transformers gives them to a model: prompts, lower case, and what is pooled; pairs as transformers does."""

from __future__ import annotations

import json
import shutil
from typing import get_args

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import AutoTokenizer, BertForSequenceClassification

import quietformer as qf
from quietformer.deployment.text_inputs import TextInputs, checked_pairs, lower_
from quietformer.errors import QuietformerError
from quietformer.models.sentence_folder import PoolingMode, SentenceSettings, pooled_by
from tests.deployment.exports import OTHER, TEXTS, small, write_encoder, write_model

PROMPT = "Find [MASK] of CATS: "
PAIRS = [("What of cats?", text) for text in TEXTS[:5]] + [("x", OTHER[-1])]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Weighted pooling without the prompt, and a tokenizer that keeps capitals unless it is told otherwise."""
    folder = write_encoder(tmp_path_factory.mktemp("cased") / "source", "pooling_mode_weightedmean_tokens")
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling | {"include_prompt": False}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 40, "do_lower_case": True}))
    return folder


@pytest.fixture(scope="module")
def model(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "cased"
    qf.export(source, out, runtime="onnxruntime", keep_fp32=True, **small(source))
    return qf.OnnxModel(out, file="model_fp32.onnx")


@pytest.fixture(scope="module")
def reranker(tmp_path_factory):
    """One logit of a pair, in which both texts have types of their own."""
    return write_model(
        tmp_path_factory.mktemp("reranker") / "source", BertForSequenceClassification, num_labels=1, type_vocab_size=2
    )


@pytest.mark.parametrize("prompt", [None, PROMPT])
def test_prompts_lower_case_and_pooling_are_those_of_sentence_transformers(source, model, prompt):
    texts = [*OTHER, "Cats And CLOCKS [SEP] Maps"]
    original = SentenceTransformer(str(source), device="cpu").encode(texts, prompt=prompt)
    np.testing.assert_allclose(model.encode(texts, prompt=prompt, batch_size=2), original, atol=1e-5)
    module = SentenceTransformer(modules=[model], device="cpu")
    np.testing.assert_allclose(module.encode(texts, prompt=prompt), original, atol=1e-5)


@pytest.mark.parametrize("mode", get_args(PoolingMode))
def test_a_prompt_that_is_skipped_is_not_pooled(mode):
    torch.manual_seed(0)
    states, mask = torch.randn(2, 7, 4), torch.tensor([[1] * 7, [0, 0, 1, 1, 1, 1, 1]])
    pooling = Pooling(4, pooling_mode=mode, include_prompt=False)
    wanted = pooling({"token_embeddings": states, "attention_mask": mask, "prompt_length": 3})["sentence_embedding"]
    torch.testing.assert_close(pooled_by(mode, states, mask, skipped=3), wanted)


def test_a_special_token_at_the_end_is_none_of_the_prompt(source):
    """Whichever it is: of a tokenizer that ends texts with its mask token, too."""
    tokenizer = AutoTokenizer.from_pretrained(source)
    original = SentenceTransformer(str(source), device="cpu")
    ended = f"find {tokenizer.mask_token}"
    backend = tokenizer.backend_tokenizer
    backend.post_processor = None
    original.tokenizer.backend_tokenizer.post_processor = None
    found = TextInputs(tokenizer, SentenceSettings(include_prompt=False)).batch(["a"], ended, None)
    assert int(found["prompt_length"]) == original.preprocess(["a"], prompt=ended)["prompt_length"]


def test_lower_case_leaves_special_tokens_as_they_are(source):
    tokenizer = AutoTokenizer.from_pretrained(source)
    wanted = tokenizer("cats [MASK] maps")["input_ids"]
    assert lower_(tokenizer)
    assert tokenizer("CATS [MASK] Maps")["input_ids"] == wanted


def test_texts_are_tokenized_a_batch_at_a_time(source):
    """However many there are; the longest come first, and every text comes once."""
    tokenizer, texts = AutoTokenizer.from_pretrained(source), [f"cats {'and maps ' * number}" for number in range(9)]
    batches = TextInputs(tokenizer, SentenceSettings()).batches(iter_counted := Counted(texts), 2, None, None)
    places, batch = next(batches)
    assert places == [8, 7]
    assert iter_counted.read == 2
    assert len(batch["input_ids"]) == len(places)
    assert sorted([*places, *(place for more, _ in batches for place in more)]) == list(range(len(texts)))


class Counted(list):
    """A list that counts which of its texts were tokenized: those that were asked for after the order was known."""

    def __init__(self, texts):
        super().__init__(texts)
        self.asked = 0

    def __getitem__(self, place):
        self.asked += 1
        return super().__getitem__(place)

    @property
    def read(self):
        return self.asked - len(self)


def test_pairs_have_the_logits_that_transformers_gives(reranker, tmp_path):
    report = qf.export(reranker, tmp_path / "out", runtime="onnxruntime", keep_fp32=True, **small(reranker))
    tokenizer = AutoTokenizer.from_pretrained(reranker)
    torch_model = BertForSequenceClassification.from_pretrained(reranker).eval()
    batch = tokenizer(*map(list, zip(*PAIRS, strict=True)), padding=True, truncation=True, return_tensors="pt")
    assert bool(batch["token_type_ids"].any())
    with torch.no_grad():
        wanted = torch_model(**batch).logits
    model = qf.OnnxModel(tmp_path / "out", file="model_fp32.onnx")
    torch.testing.assert_close(model(PAIRS, batch_size=2), wanted, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(model([list(pair) for pair in PAIRS]), wanted, atol=1e-5, rtol=1e-4)
    assert report.card.pipeline_tag == "text-ranking"
    assert "pipeline_tag: text-ranking" in (tmp_path / "out" / "README.md").read_text()
    told = {one.name: one.code for one in report.export.targets}
    found = {}
    exec(told["quietformer"].replace("FOLDER", str(tmp_path / "out")), found)
    assert found["scores"].shape == (1, 1)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([("a", "b"), "c"], "texts and pairs of texts are in one list; give two lists"),
        ([("a", "b", "c")], r"a pair is two texts, got \(str, str, str\)"),
        ([("a", 1)], r"a pair is two texts, got \(str, int\)"),
        ([3], "got int in the list"),
    ],
)
def test_what_is_no_pair_is_one_line(given, says):
    with pytest.raises(QuietformerError, match=says):
        checked_pairs(given)


def test_an_encoder_embeds_no_pairs(model):
    with pytest.raises(QuietformerError, match="got tuple in the list"):
        model.encode([("a", "b")])


def test_a_graph_that_cannot_tell_the_texts_of_a_pair_apart_is_one_line(model, tmp_path):
    shutil.copytree(model.exported.folder, tmp_path / "out")
    other = qf.OnnxModel(tmp_path / "out")
    other.session.inputs = [name for name in other.session.inputs if name != "token_type_ids"]
    with pytest.raises(QuietformerError, match="takes no token_type_ids, so it cannot tell the texts of a pair apart"):
        other(PAIRS)
