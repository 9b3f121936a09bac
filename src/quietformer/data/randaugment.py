"""RandAugment in which every image draws its own operations, with kornia's functions for whole batches.

kornia's own RandAugment draws one set of operations for the batch, shears three times as far as the paper, and at a higher
magnitude solarizes less; so the operations and their strengths are here, each stronger the higher the magnitude.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quietformer.errors import QuietformerError

# B batch, C channels, H height, W width
HIGHEST = 30

PROBABILITY = 0.5
"""An operation that was drawn takes place with this probability, as in timm, whose magnitude 9 of 10 is 27 here."""

GREY = 0.5
"""What comes in from beyond the border."""

Operation = Callable[[Tensor, Tensor], Tensor]


def load_kornia() -> Any:
    try:
        import kornia
    except ImportError:
        raise QuietformerError(
            "colour jitter and RandAugment come from kornia; pip install quietformer[vision]"
        ) from None
    return kornia


def brightness(pixels_BCHW: Tensor, factor_B: Tensor) -> Tensor:
    """Black at 0, as it is at 1."""
    return (pixels_BCHW * factor_B[:, None, None, None]).clamp(0, 1)


def contrast(pixels_BCHW: Tensor, factor_B: Tensor) -> Tensor:
    """The mean grey everywhere at 0, as it is at 1."""
    result: Tensor = load_kornia().enhance.adjust_contrast_with_mean_subtraction(pixels_BCHW, factor_B)
    return result


def saturation(pixels_BCHW: Tensor, factor_B: Tensor) -> Tensor:
    """Grey at 0, as it is at 1; images of one channel have none."""
    if pixels_BCHW.shape[1] == 1:
        return pixels_BCHW
    result: Tensor = load_kornia().enhance.adjust_saturation_with_gray_subtraction(pixels_BCHW, factor_B)
    return result


def _sharpness(pixels_BCHW: Tensor, factor_B: Tensor) -> Tensor:
    result: Tensor = load_kornia().enhance.sharpness(pixels_BCHW, factor_B)
    return result


def _auto_contrast(pixels_BCHW: Tensor, strength_B: Tensor) -> Tensor:
    low, high = pixels_BCHW.amin((-2, -1), keepdim=True), pixels_BCHW.amax((-2, -1), keepdim=True)
    return torch.where(high > low, (pixels_BCHW - low) / (high - low).clamp(min=1e-6), pixels_BCHW)


def _equalize(pixels_BCHW: Tensor, strength_B: Tensor) -> Tensor:
    result: Tensor = load_kornia().enhance.equalize(pixels_BCHW)
    return result


def _invert(pixels_BCHW: Tensor, strength_B: Tensor) -> Tensor:
    return 1 - pixels_BCHW


def _posterize(pixels_BCHW: Tensor, strength_B: Tensor) -> Tensor:
    """From four bits down to one."""
    bits = (4 - (strength_B.abs() * 4).floor()).clamp(min=1)[:, None, None, None]
    step = 2 ** (8 - bits)
    return ((pixels_BCHW * 255).round() / step).floor() * step / 255


def _solarize(pixels_BCHW: Tensor, strength_B: Tensor) -> Tensor:
    threshold = 1 - strength_B.abs()[:, None, None, None]
    return torch.where(pixels_BCHW < threshold, pixels_BCHW, 1 - pixels_BCHW)


def _solarize_add(pixels_BCHW: Tensor, strength_B: Tensor) -> Tensor:
    more = strength_B.abs()[:, None, None, None] * 110 / 255
    return torch.where(pixels_BCHW < 0.5, (pixels_BCHW + more).clamp(0, 1), pixels_BCHW)


def _rotate(pixels_BCHW: Tensor, strength_B: Tensor) -> Tensor:
    return _on_grey(load_kornia().geometry.rotate, pixels_BCHW, strength_B * 30)


def _shear(pixels_BCHW: Tensor, strength_B: Tensor, across: bool) -> Tensor:
    return _on_grey(load_kornia().geometry.shear, pixels_BCHW, _along(strength_B * 0.3, across))


def _translate(pixels_BCHW: Tensor, strength_B: Tensor, across: bool) -> Tensor:
    length = pixels_BCHW.shape[-1 if across else -2]
    return _on_grey(load_kornia().geometry.translate, pixels_BCHW, _along(strength_B * 0.45 * length, across))


def _along(values_B: Tensor, across: bool) -> Tensor:
    pair = (values_B, torch.zeros_like(values_B))
    return torch.stack(pair if across else pair[::-1], dim=1)


def _on_grey(move: Callable[[Tensor, Tensor], Tensor], pixels_BCHW: Tensor, values: Tensor) -> Tensor:
    # kornia fills with zeros, so grey is made zero for the time of the movement.
    return (move(pixels_BCHW - GREY, values) + GREY).clamp(0, 1)


def _around_one(enhance: Operation) -> Operation:
    return lambda pixels_BCHW, strength_B: enhance(pixels_BCHW, 1 + 0.9 * strength_B)


OPERATIONS: dict[str, Operation] = {
    "auto_contrast": _auto_contrast,
    "equalize": _equalize,
    "invert": _invert,
    "rotate": _rotate,
    "posterize": _posterize,
    "solarize": _solarize,
    "solarize_add": _solarize_add,
    "color": _around_one(saturation),
    "contrast": _around_one(contrast),
    "brightness": _around_one(brightness),
    "sharpness": _around_one(_sharpness),
    "shear_x": lambda pixels_BCHW, strength_B: _shear(pixels_BCHW, strength_B, across=True),
    "shear_y": lambda pixels_BCHW, strength_B: _shear(pixels_BCHW, strength_B, across=False),
    "translate_x": lambda pixels_BCHW, strength_B: _translate(pixels_BCHW, strength_B, across=True),
    "translate_y": lambda pixels_BCHW, strength_B: _translate(pixels_BCHW, strength_B, across=False),
}
"""Each takes pixels in [0, 1] and a strength in [-1, 1] for every image, whose sign is a direction where there is one."""


def rand_augment(pixels_BCHW: Tensor, operations: int, magnitude: int, rng: np.random.Generator) -> Tensor:
    """So many operations of an image's own, drawn with replacement, one after the other."""
    strength = magnitude / HIGHEST
    result = pixels_BCHW.clone()
    for _ in range(operations):
        choice = rng.integers(len(OPERATIONS), size=len(pixels_BCHW))
        choice[rng.random(len(pixels_BCHW)) >= PROBABILITY] = -1
        signs = rng.choice([-1.0, 1.0], size=len(pixels_BCHW))
        # Images with the same operation go through it together.
        for number, operation in enumerate(OPERATIONS.values()):
            rows = torch.from_numpy(np.flatnonzero(choice == number)).to(pixels_BCHW.device)
            if len(rows):
                strength_B = torch.from_numpy(signs * strength).to(pixels_BCHW)[rows]
                result[rows] = operation(result[rows], strength_B)
    return result
