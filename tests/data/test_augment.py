"""Augmentation of batches: pixels and soft targets against torch, pillow and each other."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

import quietformer as qf
from quietformer.config.recipe import AugmentRecipe
from quietformer.data.augment import BatchAugment
from quietformer.data.randaugment import OPERATIONS, brightness, contrast, rand_augment, saturation

EVERYTHING = dict(flip=0.5, color_jitter=0.4, randaugment=[2, 27], mixup=0.8, cutmix=1.0, label_smoothing=0.1)


@pytest.fixture
def pixels():
    """Eight-bit values, so that pillow can be given the same ones."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, (6, 3, 16, 16), generator=generator).float() / 255


@pytest.fixture
def labels():
    return torch.tensor([0, 3, 1, 4, 2, 3])


def augment(**fields):
    return BatchAugment(AugmentRecipe(**fields), n_classes=5)


def one_hot(labels):
    return torch.eye(5)[labels]


def pillow(pixels_CHW):
    return Image.fromarray((pixels_CHW * 255).round().byte().permute(1, 2, 0).numpy())


def back(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


def test_nothing_asked_for_is_nothing_done(pixels, labels):
    same, targets = augment()(pixels, labels, seed=1)
    assert torch.equal(same, pixels)
    assert torch.equal(targets, one_hot(labels))


def test_a_certain_flip_is_torch_flip_and_an_uncertain_one_flips_some(pixels, labels):
    assert torch.equal(augment(flip=1.0)(pixels, labels, seed=1)[0], torch.flip(pixels, dims=[-1]))
    many = pixels[:1].expand(4000, -1, -1, -1)
    flipped, targets = augment(flip=0.3)(many, labels[:1].expand(4000), seed=1)
    mirrored = (flipped == torch.flip(many, dims=[-1])).flatten(1).all(1)
    assert torch.equal(flipped[~mirrored], many[~mirrored])
    assert mirrored.float().mean() == pytest.approx(0.3, abs=0.03)
    assert torch.equal(targets, one_hot(labels[:1]).expand(4000, -1))


def test_smoothed_targets_give_torchs_smoothed_loss(pixels, labels):
    logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
    _, targets = augment(label_smoothing=0.1)(pixels, labels, seed=1)
    expected = torch.nn.CrossEntropyLoss(label_smoothing=0.1)(logits, labels)
    torch.testing.assert_close(torch.nn.CrossEntropyLoss()(logits, targets), expected)


@pytest.mark.parametrize("method", ["mixup", "cutmix", "both"])
def test_each_class_has_as_much_of_the_target_as_of_the_image(method):
    # Image i is white in channel i alone, so a channel's mean is the share of the image of that class.
    images = torch.zeros(3, 3, 12, 20)
    images[range(3), range(3)] = 1
    fields = {"mixup": {"mixup": 0.8}, "cutmix": {"cutmix": 1.0}, "both": {"mixup": 0.8, "cutmix": 1.0}}[method]
    mixes = BatchAugment(AugmentRecipe(**fields), n_classes=3)
    weights = []
    for seed in range(40):
        mixed, targets = mixes(images, torch.arange(3), seed=seed)
        torch.testing.assert_close(mixed.mean((-2, -1)), targets)
        torch.testing.assert_close(targets.sum(-1), torch.ones(3))
        weights.append(targets[0, 0].item())
    assert np.std(weights) > 0.1


def test_cutmix_pastes_whole_pixels_and_mixup_blends_them():
    images = torch.tensor([0.0, 1.0])[:, None, None, None].expand(2, 3, 8, 8)
    kinds = set()
    for seed in range(30):
        mixed, _ = augment(mixup=1.0, cutmix=1.0)(images, torch.arange(2), seed=seed)
        kinds.add("cut" if bool(((mixed == 0) | (mixed == 1)).all()) else "blend")
    assert kinds == {"cut", "blend"}


def test_the_weights_of_mixup_come_from_its_beta_distribution():
    images = torch.tensor([0.0, 1.0])[:, None, None, None].expand(2, 1, 1, 1)
    drawn = torch.tensor([augment(mixup=0.4)(images, torch.arange(2), seed=seed)[0][1].item() for seed in range(1500)])
    expected = torch.distributions.Beta(0.4, 0.4)
    assert drawn.mean().item() == pytest.approx(expected.mean.item(), abs=0.03)
    assert drawn.var().item() == pytest.approx(expected.variance.item(), abs=0.02)


def test_the_result_depends_on_the_seed_and_on_no_generator_of_the_process(pixels, labels):
    everything = augment(**EVERYTHING)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    first = everything(pixels, labels, seed=7)
    again, other = everything(pixels, labels, seed=7), everything(pixels, labels, seed=8)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (np.random.get_state()[1].tolist(), random.getstate())


@pytest.mark.parametrize("channels", [1, 3])
def test_everything_together_stays_in_range_and_leaves_its_input_alone(pixels, labels, channels):
    given = pixels[:, :channels].contiguous()
    kept = given.clone()
    for seed in range(20):
        result, targets = augment(**EVERYTHING)(given, labels, seed=seed)
        assert result.shape == given.shape
        assert result.dtype == targets.dtype == torch.float32
        assert 0 <= result.min() <= result.max() <= 1
        torch.testing.assert_close(targets.sum(-1), torch.ones(6))
    assert torch.equal(given, kept)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(brightness, ImageEnhance.Brightness), (contrast, ImageEnhance.Contrast), (saturation, ImageEnhance.Color)],
)
@pytest.mark.parametrize("factor", [0.4, 1.0, 1.6])
def test_colours_change_as_in_pillow(pixels, ours, theirs, factor):
    changed = ours(pixels, torch.full((6,), factor))
    expected = torch.stack([back(theirs(pillow(image)).enhance(factor)) for image in pixels])
    torch.testing.assert_close(changed, expected, atol=2.5 / 255, rtol=0)


def test_jitter_keeps_within_its_strength_and_differs_between_images(labels):
    grey = torch.full((6, 3, 4, 4), 0.5)
    jittered = augment(color_jitter=0.4)(grey, labels, seed=0)[0]
    values = jittered[:, 0, 0, 0]
    assert len(values.unique()) == 6
    assert 0.3 <= values.min() < values.max() <= 0.7
    torch.testing.assert_close(jittered, values[:, None, None, None].expand_as(jittered))


GREY = (128, 128, 128)
PILLOW = {
    "auto_contrast": (ImageOps.autocontrast, 2),
    "equalize": (ImageOps.equalize, 6),
    "invert": (ImageOps.invert, 1),
    "posterize": (lambda image: ImageOps.posterize(image, 2), 1),  # half way from four bits to none
    "solarize": (lambda image: ImageOps.solarize(image, 128), 1),
    "color": (lambda image: ImageEnhance.Color(image).enhance(1.45), 2.5),
    "contrast": (lambda image: ImageEnhance.Contrast(image).enhance(1.45), 2.5),
    "brightness": (lambda image: ImageEnhance.Brightness(image).enhance(1.45), 2.5),
    "sharpness": (lambda image: ImageEnhance.Sharpness(image).enhance(1.45), 2.5),
}


@pytest.mark.parametrize("name", PILLOW)
def test_operations_at_half_strength_are_pillows(pixels, name):
    expected, levels = PILLOW[name]
    changed = OPERATIONS[name](pixels, torch.full((6,), 0.5))
    wanted = torch.stack([back(expected(pillow(image))) for image in pixels])
    torch.testing.assert_close(changed, wanted, atol=levels / 255, rtol=0)


@pytest.mark.parametrize(("name", "angle"), [("shear_x", 0.15), ("shear_y", 0.15), ("rotate", 15)])
def test_movements_reach_as_far_as_pillows_at_half_strength(name, angle):
    # Smooth images: two ways of interpolating noise would have little in common.
    ramp = torch.linspace(0, 1, 32)
    smooth = torch.stack([ramp[:, None].expand(32, 32), ramp[None].expand(32, 32), torch.outer(ramp, ramp)])
    image = pillow(smooth)
    moved = OPERATIONS[name](smooth[None], torch.tensor([0.5]))[0]
    found = []
    for sign in (-1, 1):  # which way is positive is a convention
        if name == "rotate":
            theirs = image.rotate(sign * angle, resample=Image.Resampling.BILINEAR, fillcolor=GREY)
        else:
            matrix = (1, sign * angle, 0, 0, 1, 0) if name == "shear_x" else (1, 0, 0, sign * angle, 1, 0)
            theirs = image.transform(
                (32, 32), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR, fillcolor=GREY
            )
        found.append((moved - back(theirs)).abs().median().item())
    assert min(found) < 0.02 < max(found)


def test_translation_moves_by_a_share_of_the_side_and_fills_with_grey():
    pixels = torch.zeros(1, 3, 20, 40)
    across = OPERATIONS["translate_x"](pixels, torch.tensor([1.0]))
    down = OPERATIONS["translate_y"](pixels, torch.tensor([-1.0]))
    assert torch.equal(across[0, 0, 0] > 0.4, torch.arange(40) < 18)
    assert torch.equal(down[0, 0, :, 0] > 0.4, torch.arange(20) >= 11)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_higher_magnitude_changes_more_or_the_same(name):
    # Smooth, since noise that has moved a little is as strange to itself as noise that has moved far.
    smooth = torch.outer(torch.linspace(0.1, 0.9, 32), torch.linspace(0.3, 1, 32)).expand(1, 3, 32, 32)
    smooth = smooth * torch.tensor([1.0, 0.7, 0.4])[:, None, None]
    changes = [
        (OPERATIONS[name](smooth, torch.tensor([strength])) - smooth).abs().mean().item()
        for strength in (0.2, 0.5, 0.9)
    ]
    assert changes == sorted(changes)


def test_every_image_draws_operations_of_its_own(pixels):
    many = pixels[:1].expand(64, -1, -1, -1).contiguous()
    changed = rand_augment(many, 1, 27, np.random.default_rng(0))
    untouched = (changed == many).flatten(1).all(1)
    assert 20 <= untouched.sum() <= 44  # one in two takes place
    assert len(torch.unique(changed[~untouched], dim=0)) > 12


@pytest.mark.parametrize(
    "fields", [{"crop": [0.0, 1.0]}, {"crop": [0.9, 0.2]}, {"randaugment": [2, 31]}, {"randaugment": [0, 9]}]
)
def test_ranges_that_make_no_sense_are_refused(fields):
    with pytest.raises(qf.QuietformerError, match=next(iter(fields))):
        AugmentRecipe(**fields)
