"""Known items: a paragraph's first sentence and its rest."""

from __future__ import annotations

import itertools

import torch
from transformers import BertModel

from quietformer.config.options.data import CalibrationOptions
from quietformer.data.calibration_data import calibration_data
from quietformer.data.known_items import FEWEST, known_item_batches, known_items
from quietformer.data.tokenizers import train_tokenizer
from tests.tiny_models import build

PARAGRAPHS = [
    f"This is paragraph {number} of many. It has a rest of {number} words! Is there more?" for number in range(60)
]


def test_first_sentences_and_rests_each_once():
    texts = ["One sentence that stands alone here", "Too short. Rest of this paragraph is long.", *PARAGRAPHS[:3]]
    found = known_items([*texts, *texts], 10)
    expected = [(f"This is paragraph {n} of many.", f"It has a rest of {n} words! Is there more?") for n in range(3)]
    assert found == expected
    assert known_items(texts, 2) == expected[:2]
    assert known_items(itertools.repeat("no rest here"), 2) == []  # a source without paragraphs is given up


def test_queries_and_documents_stay_together():
    tokenizer = train_tokenizer(PARAGRAPHS, vocabulary=300, characters=2000)
    pairs = known_items(PARAGRAPHS, 30)
    items = known_item_batches(pairs, tokenizer, length=12, batch_size=7)
    assert items is not None

    def texts(batches):
        rows = [
            row[mask.bool()]
            for batch in batches
            for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
        ]
        return [tokenizer.decode(row, skip_special_tokens=True).strip() for row in rows]

    rests = {first: rest for first, rest in pairs}
    queries, documents = texts(items.queries), texts(items.documents)
    assert len(queries) == len(pairs)
    for query, document in zip(queries, documents, strict=True):
        (rest,) = [rest for first, rest in rests.items() if first.startswith(query)] or [""]
        assert document
        assert rest.startswith(document)
    assert max(batch["input_ids"].shape[1] for batch in items.documents) <= 12
    assert known_item_batches(pairs[: FEWEST - 1], tokenizer, length=12, batch_size=7) is None


def test_items_are_of_text_that_nothing_is_calibrated_on(tmp_path):
    model = BertModel(build("bert").config)
    model.resize_token_embeddings(300)
    model.save_pretrained(tmp_path)
    tokenizer = train_tokenizer(PARAGRAPHS, vocabulary=300, characters=2000)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "texts.txt").write_text("\n".join(PARAGRAPHS * 3))
    (tmp_path / "other.txt").write_text("\n".join(PARAGRAPHS))
    (tmp_path / "short.txt").write_text("\n".join(PARAGRAPHS[:5]))
    small = CalibrationOptions(texts=tmp_path / "texts.txt", sequences=10, calibration=1, batch_size=4, length=16)

    def items(**fields):
        options = CalibrationOptions(**(dict(small) | fields))
        return calibration_data(model, str(tmp_path), "embedding", options).known_items

    found = items()
    assert found is not None
    assert sum(len(batch["input_ids"]) for batch in found.queries) == 20
    assert items(eval_texts=tmp_path / "other.txt") is not None
    assert items(texts=tmp_path / "short.txt") is None  # all of it is calibrated or evaluated on
    options = CalibrationOptions(**dict(small))
    assert calibration_data(model, str(tmp_path), "causal", options).known_items is None
    assert torch.is_tensor(found.queries[0]["input_ids"])
