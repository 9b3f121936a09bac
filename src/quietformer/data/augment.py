"""What is done to a batch of training images: flips, colours, RandAugment, Mixup and CutMix with their soft targets."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from quietformer.config.recipe import AugmentRecipe
from quietformer.data.randaugment import brightness, contrast, load_kornia, rand_augment, saturation


# B batch, C channels, H height, W width, N classes
class BatchAugment:
    """A recipe's augmentation of whole batches, on the device they are on.

    All that is random is drawn from a generator made of the seed, on the CPU: the result is the same on any device, and no
    generator of the process is touched.
    """

    def __init__(self, recipe: AugmentRecipe, n_classes: int) -> None:
        self.recipe, self.n_classes = recipe, n_classes
        if recipe.color_jitter or recipe.randaugment:
            load_kornia()  # that it is missing is said before training, not at its first step

    def __call__(self, pixels_BCHW: Tensor, labels_B: Tensor, *, seed: int) -> tuple[Tensor, Tensor]:
        """Pixels in [0, 1] and soft targets (B, N)."""
        recipe, rng = self.recipe, np.random.default_rng(seed)
        if recipe.flip:
            pixels_BCHW = flip(pixels_BCHW, recipe.flip, rng)
        if recipe.randaugment:
            pixels_BCHW = rand_augment(pixels_BCHW, *recipe.randaugment, rng)
        if recipe.color_jitter:
            pixels_BCHW = color_jitter(pixels_BCHW, recipe.color_jitter, rng)
        targets_BN = smooth_one_hot(labels_B, self.n_classes, recipe.label_smoothing)
        # Where both are on, each batch has one of them.
        if recipe.cutmix and (not recipe.mixup or rng.random() < 0.5):
            return cutmix(pixels_BCHW, targets_BN, recipe.cutmix, rng)
        if recipe.mixup:
            return mixup(pixels_BCHW, targets_BN, recipe.mixup, rng)
        return pixels_BCHW, targets_BN


def flip(pixels_BCHW: Tensor, probability: float, rng: np.random.Generator) -> Tensor:
    """Each image mirrored, left to right, with this probability."""
    mirrored = torch.from_numpy(rng.random(len(pixels_BCHW)) < probability).to(pixels_BCHW.device)
    return torch.where(mirrored[:, None, None, None], pixels_BCHW.flip(-1), pixels_BCHW)


def color_jitter(pixels_BCHW: Tensor, strength: float, rng: np.random.Generator) -> Tensor:
    """Brightness, contrast and saturation times a factor up to `strength` away from 1, in a random order."""
    low, high = max(0.0, 1 - strength), 1 + strength
    for which in rng.permutation(3):
        factors = torch.from_numpy(rng.uniform(low, high, len(pixels_BCHW))).to(pixels_BCHW)
        pixels_BCHW = (brightness, contrast, saturation)[which](pixels_BCHW, factors)
    return pixels_BCHW


def smooth_one_hot(labels_B: Tensor, n_classes: int, smoothing: float) -> Tensor:
    """1 - smoothing for the class, and smoothing shared by all classes alike."""
    return nn.functional.one_hot(labels_B, n_classes).float() * (1 - smoothing) + smoothing / n_classes


def mixup(pixels_BCHW: Tensor, targets_BN: Tensor, alpha: float, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Each image a blend with its neighbour, each target too; one weight from Beta(alpha, alpha) for the batch."""
    weight = rng.beta(alpha, alpha)
    return (
        (pixels_BCHW * weight + pixels_BCHW.roll(1, 0) * (1 - weight)).clamp(0, 1),
        targets_BN * weight + targets_BN.roll(1, 0) * (1 - weight),
    )


def cutmix(pixels_BCHW: Tensor, targets_BN: Tensor, alpha: float, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """A box of each image replaced by that of its neighbour, and as much of the target as the box is of the area."""
    height, width = pixels_BCHW.shape[-2:]
    side = np.sqrt(1 - rng.beta(alpha, alpha))
    top, bottom = _cut(height, side, rng)
    left, right = _cut(width, side, rng)
    mixed = pixels_BCHW.clone()
    mixed[..., top:bottom, left:right] = pixels_BCHW.roll(1, 0)[..., top:bottom, left:right]
    # Of the box as it was cut: one that reaches over the border is smaller than was drawn.
    share = (bottom - top) * (right - left) / (height * width)
    return mixed, targets_BN * (1 - share) + targets_BN.roll(1, 0) * share


def _cut(length: int, share: float, rng: np.random.Generator) -> tuple[int, int]:
    half, centre = int(length * share) // 2, int(rng.integers(length))
    return max(0, centre - half), min(length, centre + half)
