"""Text and images as batches."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.image_utils import load_image

import quietformer as qf
from quietformer.data.builtin_text import builtin_paragraphs, paragraphs
from quietformer.data.image_batches import digit_images, folder_images, open_image
from quietformer.data.packing import Packer
from quietformer.data.text_batches import (
    dataset_texts,
    pieces,
    read_texts,
    special_tokens,
    text_batches,
    token_sequences,
)


class Words:
    """A tokenizer that gives every word its length as id, [CLS] 1 and [SEP] 2."""

    def __call__(self, text, add_special_tokens=True, verbose=True):
        ids = [len(word) + 2 for word in text.split()]
        return {"input_ids": [1, *ids, 2] if add_special_tokens else ids}


def test_the_builtin_paragraphs_is_english_and_the_same_each_time():
    first, second = (list(itertools.islice(builtin_paragraphs(), 50)) for _ in range(2))
    assert first == second
    assert len(set(first)) == 50
    assert all(len(paragraph) >= 80 for paragraph in first)
    words = " ".join(first).lower().split()
    assert sum(word in ("the", "of", "a", "is", "to", "and") for word in words) / len(words) > 0.12


def test_paragraphs_keep_sentences_and_drop_the_rest():
    text = (
        "    x = 1\n\n    Short.\n\n"
        + "This is a sentence that goes on for long enough to be kept as prose, it seems so.\n"
    )
    assert len(list(paragraphs(text))) == 1


def test_sequences_are_full_and_framed_by_special_tokens():
    assert special_tokens(Words()) == ([1], [2])
    sequences = token_sequences(["one two three four five six seven"] * 3, Words(), count=4, length=6)
    assert [len(sequence) for sequence in sequences] == [6, 6, 6, 6]
    assert all(sequence[0] == 1 and sequence[-1] == 2 for sequence in sequences)
    assert token_sequences(["a bb"], Words(), count=4, length=9) == [[1, 3, 4, 2]]
    with pytest.raises(qf.QuietformerError, match="leave no room"):
        token_sequences(["a"], Words(), count=1, length=2)


class Counting(Words):
    """As `Words`, and how many characters it was given."""

    seen = 0

    def __call__(self, text, add_special_tokens=True, verbose=True):
        several = text if isinstance(text, list) else [text]
        self.seen += sum(map(len, several))
        made = [super(Counting, self).__call__(one, add_special_tokens)["input_ids"] for one in several]
        return {"input_ids": made if isinstance(text, list) else made[0]}


def test_of_a_line_of_megabytes_no_more_is_tokenised_than_needed():
    line, tokenizer = "a bb ccc " * 500_000, Counting()
    sequences = token_sequences([line], tokenizer, count=3, length=100)
    assert sequences == token_sequences(["a bb ccc " * 200], Words(), count=3, length=100)
    assert tokenizer.seen < len(line) / 100


@pytest.mark.parametrize("special", ["sequence", "text"])
def test_pieces_of_a_long_line_have_the_tokens_of_the_whole(special):
    line = " ".join(["word", "a", "three"] * 20_000)
    assert "".join(pieces(line)) == line
    assert max(map(len, pieces(line))) <= 20_000
    assert len(list(pieces("x" * 50_001))) == 3
    found = Packer(Counting(), 50, special).tokenise({"text": [line, "a bb"]})["input_ids"]
    for text, ids in zip((line, "a bb"), found, strict=True):
        assert ids == Words()(text, add_special_tokens=special == "text")["input_ids"]


def test_batches_are_padded_and_masked():
    (batch,) = text_batches([[1, 5, 2], [1, 2]], pad=0, batch_size=4)
    assert batch["input_ids"].tolist() == [[1, 5, 2], [1, 2, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]


def test_bad_text_is_named(tmp_path):
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00\x80")
    for name, message in (
        ("empty.txt", "holds no text"),
        ("binary.txt", "cannot be read"),
        ("none.txt", "is not there"),
    ):
        with pytest.raises(qf.QuietformerError, match=message):
            read_texts(tmp_path / name)
    with pytest.raises(qf.QuietformerError, match=r"datasets|cannot be read"):
        list(dataset_texts(str(tmp_path / "nothing")))


def test_rows_of_a_dataset_that_hold_no_text_are_told_or_left_out(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"text": "a word"}) + "\n" + json.dumps({"text": None}) + "\n")
    assert list(dataset_texts(str(tmp_path))) == ["a word"]
    rows.write_text(json.dumps({"text": ["a", "word"]}))
    with pytest.raises(qf.QuietformerError, match="column 'text' holds list, not text"):
        list(dataset_texts(str(tmp_path)))
    with pytest.raises(qf.QuietformerError, match=r"rows\.jsonl is a file, not a dataset; give it with --texts"):
        list(dataset_texts(str(rows)))


def test_images_of_a_folder(tmp_path):
    Image.new("RGB", (20, 10), (255, 0, 0)).save(tmp_path / "red.png")
    pixels = folder_images(tmp_path, count=4, size=8, channels=3)
    assert pixels.shape == (1, 3, 8, 8)
    assert pixels[0, :, 0, 0].tolist() == [1.0, -1.0, -1.0]
    (tmp_path / "broken.png").write_text("no image")
    with pytest.raises(qf.QuietformerError, match=r"broken.png does not decode"):
        folder_images(tmp_path, count=4, size=8, channels=3)
    (tmp_path / "none").mkdir()
    with pytest.raises(qf.QuietformerError, match="holds no images"):
        folder_images(tmp_path / "none", count=4, size=8, channels=3)


def test_a_photo_is_turned_as_transformers_turns_it(tmp_path):
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 255, (8, 8, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright
    photo.save(tmp_path / "photo.png", exif=exif)
    pixels = folder_images(tmp_path, count=1, size=8, channels=3)
    expected = np.asarray(load_image(str(tmp_path / "photo.png")))
    assert not np.array_equal(expected, np.asarray(photo))
    assert np.allclose(((pixels[0] + 1) * 255 / 2).permute(1, 2, 0), expected, atol=1e-3)


@pytest.mark.parametrize("kind", [np.uint16, np.int32, np.float32])
def test_more_than_eight_bits_are_refused_rather_than_cut_to_white(tmp_path, kind):
    Image.fromarray(np.linspace(0, 60_000, 64).reshape(8, 8).astype(kind)).save(tmp_path / "deep.tiff")
    with pytest.raises(qf.QuietformerError, match="more than 8 bits a channel"):
        open_image(tmp_path / "deep.tiff", channels=3)


def test_digits_are_real_and_scaled():
    pixels, labels = digit_images(count=20, size=32, channels=1)
    assert pixels.shape == (20, 1, 32, 32)
    assert labels[:10].tolist() == list(range(10))
    assert -1 <= pixels.min() < pixels.max() <= 1
    assert not torch.equal(pixels[0], pixels[1])
