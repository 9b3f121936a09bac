"""Text that does not suit a tokenizer is told; a model that reads only unknown tokens is not measured."""

from __future__ import annotations

import json
import warnings

import pytest
from transformers import BertConfig, BertModel, BertTokenizer, RobertaConfig

from quietformer.analysis.outliers import TokenNames
from quietformer.data.text_fit import check_fit, text_fit
from quietformer.data.tokenizers import tokenizer_of, train_tokenizer
from quietformer.errors import QuietformerError, QuietformerWarning
from tests.commands import fails

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["one", "small", "model", "reads", "text", "like", "this", "##s"]
PIECES = [*"abcdefghijklmnopqrstuvwxyz", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]


def _tokenizer(words):
    return BertTokenizer(vocab={word: place for place, word in enumerate([*SPECIAL, *words])})


def _texts(known, unknown):
    """So many words of each kind, one a text."""
    return ["small"] * known + ["Schokolade"] * unknown


@pytest.mark.parametrize(("known", "unknown"), [(10, 0), (9, 1), (1, 3)])
def test_the_share_is_that_of_the_words(known, unknown):
    fit = text_fit(_texts(known, unknown), _tokenizer(WORDS))
    assert fit.unknown == pytest.approx(unknown / (known + unknown))
    assert fit.tokens_per_word == 1


def test_tokens_a_word_are_letters_where_the_tokenizer_knows_letters_only():
    assert text_fit(["small text"], _tokenizer(PIECES)).tokens_per_word == (len("small") + len("text")) / 2


def test_writing_without_spaces_has_no_words_to_count():
    assert text_fit(["smallmodel" * 9], _tokenizer(PIECES)).tokens_per_word is None


def test_text_that_suits_says_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_fit(["small models like this"] * 9, _tokenizer(WORDS), "it")


def test_some_unknown_tokens_are_told_and_many_are_refused():
    with pytest.warns(QuietformerWarning, match="10% of the tokens of notes.txt are unknown"):
        check_fit(_texts(9, 1), _tokenizer(WORDS), "notes.txt")
    with pytest.raises(QuietformerError, match=r"75% of the tokens of notes.txt are unknown .*--tokenizer"):
        check_fit(_texts(1, 3), _tokenizer(WORDS), "notes.txt")


def test_words_cut_into_letters_are_told():
    with pytest.warns(QuietformerWarning, match=f"into {(5 + 6 + 8) / 3:.1f} tokens"):
        check_fit(["small models breaking"], _tokenizer(PIECES), "notes.txt")


def test_a_warning_points_at_the_users_own_line():
    with pytest.warns(QuietformerWarning) as seen:
        check_fit(["small models breaking"], _tokenizer(PIECES), "notes.txt")
    assert [one.filename for one in seen] == [__file__]


@pytest.fixture
def folder(tmp_path):
    """A model that has no tokenizer."""
    config = BertConfig(vocab_size=70, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    BertModel(config).save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


def test_a_chemistry_tokenizer_is_not_measured_on_english(run, folder):
    _tokenizer([*"CNOPSFclno()[]=#123456"]).save_pretrained(folder)
    assert "are unknown to the model's tokenizer" in fails(run, "inspect", folder, "--sequences", "4")


def test_without_a_tokenizer_one_can_be_named_and_is_kept(run, folder, tmp_path):
    assert "name one with --tokenizer" in fails(run, "inspect", folder)
    _tokenizer(PIECES).save_pretrained(tmp_path / "letters")
    code, _, errors = run(
        "quantize", folder, "--tokenizer", tmp_path / "letters", "--sequences", "4", "--calibration", "1", "--seeds",
        "1", "--page", tmp_path / "page.html", "--out", tmp_path / "out",
    )  # fmt: skip
    assert code == 0, errors
    named, kept = (tokenizer_of(str(tmp_path / name))("a small text")["input_ids"] for name in ("letters", "out"))
    assert named == kept


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("words", [WORDS, [*WORDS, "Small"]], ids=["lower", "cased"])
def test_a_list_of_words_alone_is_a_tokenizer_whatever_the_family(family, words, tmp_path):
    """Korean and other models keep BERT's vocab.txt though their class has another tokenizer."""
    config = BertConfig() if family == "bert" else RobertaConfig()
    config.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, *words]) + "\n", encoding="utf-8")
    found = tokenizer_of(str(tmp_path))("small models", add_special_tokens=False)["input_ids"]
    assert [[*SPECIAL, *words][place] for place in found] == ["small", "model", "##s"]


def test_a_tokenizer_that_writes_text_out_a_million_times_is_refused(tmp_path):
    """Its library would end the process when there is no more memory."""
    train_tokenizer(["some words of prose"], vocabulary=300, characters=100).save_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    fields = json.loads(path.read_text())
    fields["normalizer"] = {"type": "Replace", "pattern": {"String": "e"}, "content": "x" * 10**5}
    path.write_text(json.dumps(fields))
    with pytest.raises(QuietformerError, match="its tokenizer makes"):
        tokenizer_of(str(tmp_path))


def test_a_token_without_a_text_is_called_by_its_number():
    names = TokenNames({0: "[CLS]", 1: "word"}.get, frozenset({0}))
    assert [names.text(token) for token in range(3)] == ["[CLS]", "word", "2"]
    assert [names.is_delimiter(token) for token in range(3)] == [True, False, False]
