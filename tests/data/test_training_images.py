"""Labelled images: what is decoded, cropped, held out and refused."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from PIL import Image

import quietformer as qf
from quietformer.config.recipe import AugmentRecipe, Source
from quietformer.data.image_batches import digit_images
from quietformer.data.training_images import image_rows, random_box, split_rows

COLOURS = {"blue": (0, 0, 255), "green": (0, 255, 0), "red": (255, 0, 0)}


@pytest.fixture
def folder(tmp_path):
    """Three classes of four noisy images, wider than high."""
    rng = np.random.default_rng(0)
    for name in COLOURS:
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(4):
            pixels = rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{number}.png")
    return tmp_path / "images"


def rows_of(path, *, size=8, channels=3, classes=None, limit=0, **augment):
    sources = (path if isinstance(path, Source) else Source(path=str(path)),)
    recipe = AugmentRecipe(**augment)
    return image_rows(sources, shape=(size, channels), augment=recipe, classes=classes, limit=limit)


def loaded(rows):
    return torch.stack([rows.load(index, None)[0] for index in range(len(rows))])


def test_subfolders_are_the_classes_in_order_of_name(folder):
    rows = rows_of(folder)
    assert rows.classes == ["blue", "green", "red"]
    assert len(rows) == 12
    assert [rows.load(index, None)[1] for index in range(12)] == [0] * 4 + [1] * 4 + [2] * 4


def test_classes_that_are_numbers_are_ordered_by_value(tmp_path):
    for name in ("10", "9", "1"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (4, 4)).save(tmp_path / name / "a.png")
    assert rows_of(tmp_path).classes == ["1", "9", "10"]


@pytest.mark.parametrize(
    ("name", "filter"), [("bilinear", Image.Resampling.BILINEAR), ("bicubic", Image.Resampling.BICUBIC)]
)
def test_evaluation_is_pillows_resize_of_the_shorter_side_and_a_central_cut(folder, name, filter):
    pixels, label = rows_of(folder, interpolation=name).load(5, None)
    with Image.open(folder / "green" / "1.png") as image:
        expected = np.asarray(image.resize((12, 8), filter).crop((2, 0, 10, 8)), dtype=np.float32) / 255
    assert label == 1
    assert torch.equal(pixels, torch.from_numpy(expected).permute(2, 0, 1))


def test_one_channel_is_grey(folder):
    pixels, _ = rows_of(folder, channels=1, size=20).load(0, None)
    with Image.open(folder / "blue" / "0.png") as image:
        grey = np.asarray(image.convert("L").crop((5, 0, 25, 20)), dtype=np.float32) / 255
    assert torch.equal(pixels, torch.from_numpy(grey)[None])


def test_training_without_a_crop_loads_as_evaluation_does(folder):
    rows = rows_of(folder)
    assert torch.equal(rows.load(3, np.random.default_rng(0))[0], rows.load(3, None)[0])


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "random"])
def test_random_crops_of_one_colour_have_that_colour(tmp_path, interpolation):
    for name, colour in COLOURS.items():
        (tmp_path / name).mkdir()
        Image.new("RGB", (23, 17), colour).save(tmp_path / name / "a.png")
    rows = rows_of(tmp_path, crop=[0.08, 1.0], interpolation=interpolation)
    for index, colour in enumerate(COLOURS.values()):
        pixels, label = rows.load(index, np.random.default_rng(index))
        assert label == index
        assert torch.equal(pixels, torch.tensor(colour).float().div(255)[:, None, None].expand(3, 8, 8))


def test_random_crops_depend_on_their_generator_alone(folder):
    rows = rows_of(folder, crop=[0.2, 0.8], interpolation="random")
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    first = rows.load(3, np.random.default_rng(7))[0]
    assert torch.equal(first, rows.load(3, np.random.default_rng(7))[0])
    assert not torch.equal(first, rows.load(3, np.random.default_rng(8))[0])
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (np.random.get_state()[1].tolist(), random.getstate())


def test_a_random_crop_is_cut_out_before_it_is_scaled(folder):
    pixels, _ = rows_of(folder, crop=[0.3, 0.6]).load(0, np.random.default_rng(4))
    with Image.open(folder / "blue" / "0.png") as image:
        box = random_box(*image.size, (0.3, 0.6), np.random.default_rng(4))
        expected = np.asarray(image.crop(box).resize((8, 8), Image.Resampling.BILINEAR), dtype=np.float32) / 255
    assert torch.equal(pixels, torch.from_numpy(expected).permute(2, 0, 1))


def test_random_boxes_have_the_share_and_the_aspect_asked_for():
    rng = np.random.default_rng(0)
    boxes = np.array([random_box(300, 200, (0.1, 0.5), rng) for _ in range(2000)])
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    share, aspect = width * height / 60000, width / height
    assert boxes.min() >= 0
    assert boxes[:, 2].max() <= 300
    assert boxes[:, 3].max() <= 200
    assert share.min() > 0.09
    assert share.max() < 0.51
    assert share.mean() == pytest.approx(0.3, abs=0.01)
    assert aspect.min() > 0.73
    assert aspect.max() < 1.37
    assert np.log(aspect).mean() == pytest.approx(0, abs=0.02)


def test_a_box_that_cannot_fit_becomes_a_central_one():
    left, top, right, bottom = random_box(1000, 10, (1.0, 1.0), np.random.default_rng(0))
    assert (top, bottom) == (0, 10)
    assert (right - left) / 10 == pytest.approx(4 / 3, rel=0.05)
    assert left + right == pytest.approx(1000, abs=1)


def test_digits_are_scaled_as_everywhere_else():
    rows = rows_of(Source(builtin="digits"), size=32, channels=1)
    expected, labels = digit_images(count=1797, size=32, channels=1)
    assert rows.classes == list("0123456789")
    assert rows.labels.tolist() == labels.tolist()
    torch.testing.assert_close(loaded(rows.only(np.arange(50))), (expected[:50] + 1) / 2)
    colour, _ = rows_of(Source(builtin="digits"), size=32, channels=3, interpolation="bicubic").load(9, None)
    assert colour.shape == (3, 32, 32)
    assert 0 <= colour.min() < colour.max() <= 1


def test_held_out_images_are_no_training_images_and_of_all_classes(folder):
    rows = rows_of(Source(builtin="digits"), channels=1)
    train, held = split_rows(rows, 200, seed=3)
    assert (len(train), len(held)) == (1597, 200)
    assert np.bincount(held.labels).tolist() == [20] * 10
    everything = sorted(np.concatenate([train._rows, held._rows]).tolist())
    assert everything == list(range(1797))
    again, other = split_rows(rows, 200, seed=3)[1], split_rows(rows, 200, seed=4)[1]
    assert torch.equal(loaded(held), loaded(again))
    assert not torch.equal(loaded(held), loaded(other))


def test_a_limit_takes_all_classes_alike(folder):
    rows = rows_of(folder, limit=6)
    assert np.bincount(rows.labels).tolist() == [2, 2, 2]
    assert torch.equal(loaded(rows), loaded(rows_of(folder, limit=6)))
    assert len(rows_of(folder, limit=100)) == 12


def test_sources_come_one_after_the_other_under_one_list_of_classes(folder, tmp_path):
    (tmp_path / "more" / "green").mkdir(parents=True)
    Image.new("RGB", (8, 8), (1, 2, 3)).save(tmp_path / "more" / "green" / "x.png")
    sources = (Source(path=str(folder)), Source(path=str(tmp_path / "more")))
    rows = image_rows(sources, shape=(8, 3), augment=AugmentRecipe())
    pixels, label = rows.load(12, None)
    assert (len(rows), label) == (13, 1)
    assert (pixels[:, 0, 0] * 255).tolist() == [1, 2, 3]


def test_given_classes_decide_the_labels(folder):
    assert rows_of(folder, classes=["red", "yellow", "blue", "green"]).labels.tolist() == [2] * 4 + [3] * 4 + [0] * 4


def test_what_is_wrong_with_a_folder_is_said_in_one_line(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "flat").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "flat" / "a.png")
    for path, message in (
        (tmp_path / "none", "none is not there"),
        (tmp_path / "empty", "empty holds no images"),
        (tmp_path / "flat", r"a.png is in no class"),
    ):
        with pytest.raises(qf.QuietformerError, match=message) as caught:
            rows_of(path)
        assert "\n" not in str(caught.value)
    with pytest.raises(qf.QuietformerError, match="the class 'red', which is none of blue, green"):
        rows_of(folder, classes=["blue", "green"])
    with pytest.raises(qf.QuietformerError, match="12 images are too few to hold out 12"):
        split_rows(rows_of(folder), 12)
    with pytest.raises(qf.QuietformerError, match="holds text"):
        rows_of(Source(builtin="embedded"))


def test_a_damaged_image_is_named_when_it_is_reached(folder):
    (folder / "red" / "9.png").write_bytes((folder / "red" / "0.png").read_bytes()[:200])
    rows = rows_of(folder)
    rows.load(11, None)
    with pytest.raises(qf.QuietformerError, match=r"9.png does not decode"):
        rows.load(12, None)


@pytest.fixture
def table(folder):
    datasets = pytest.importorskip("datasets")
    paths = sorted(folder.rglob("*.png"))
    columns = {
        "picture": [str(path) for path in paths],
        "kind": [list(COLOURS).index(path.parent.name) for path in paths],
    }
    features = datasets.Features(picture=datasets.Image(), kind=datasets.ClassLabel(names=list(COLOURS)))
    return datasets.Dataset.from_dict(columns, features=features)


@pytest.mark.parametrize("form", ["parquet", "saved", "splits"])
def test_a_dataset_gives_the_images_that_its_folder_gives(folder, table, tmp_path, form, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    place = tmp_path / "data"
    if form == "parquet":
        (place / "data").mkdir(parents=True)
        table.to_parquet(place / "data" / "test-00000-of-00001.parquet")
    elif form == "saved":
        table.save_to_disk(place)
    else:
        datasets.DatasetDict(train=table.select([0]), test=table).save_to_disk(place)
    rows = rows_of(Source(path=str(place), image="picture", label="kind", split="test"))
    expected = rows_of(folder)
    assert rows.classes == expected.classes
    assert rows.labels.tolist() == expected.labels.tolist()
    assert torch.equal(loaded(rows), loaded(expected))


def test_what_is_wrong_with_a_dataset_is_said_in_one_line(table, tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.DatasetDict(train=table).save_to_disk(tmp_path / "data")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "train.parquet").write_bytes(b"no table")
    path = str(tmp_path / "data")
    for source, message in (
        (Source(path=path), "no column 'image'; it has picture, kind"),
        (Source(path=path, image="picture"), "no column 'label'; it has picture, kind"),
        (Source(path=path, image="kind", label="kind"), "column 'kind' of .* holds no images"),
        (Source(path=path, image="picture", label="picture"), "must hold one class a row"),
        (Source(path=path, image="picture", label="kind", split="test"), "no split 'test'"),
        (Source(path=str(tmp_path / "bad")), "bad cannot be read as a dataset"),
    ):
        with pytest.raises(qf.QuietformerError, match=message) as caught:
            rows_of(source)
        assert "\n" not in str(caught.value)


def test_a_dataset_that_cannot_be_fetched_is_one_line(monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(qf.QuietformerError, match="dataset nobody/nothing cannot be read") as caught:
        rows_of(Source(dataset="nobody/nothing"))
    assert "\n" not in str(caught.value)
