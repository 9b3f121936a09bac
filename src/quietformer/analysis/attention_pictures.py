"""The few attention patterns and patch maps that are shown as pictures, stored as bytes."""

# B sequences, T tokens, H heads, D features of a head

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from quietformer.analysis.recorder import AttentionRecord
from quietformer.results.inspect import (
    HeadPicture,
    LayerPicture,
    PackedMatrix,
    PatchPicture,
    Pictures,
    SequencePicture,
)

LONGEST = 64
"""Tokens shown of a sequence."""

MOST_BYTES = 6_000_000
"""What all pictures together may take, before base64."""


def pack(x: Tensor, *, symmetric: bool) -> PackedMatrix:
    """A matrix as bytes with its scale: values = (byte - zero) * step."""
    x = x.float()
    largest = float(x.abs().max()) or 1.0
    step, zero = (largest / 127, 128) if symmetric else (largest / 255, 0)
    data = (x / step + zero).round().clamp(0, 255).to(torch.uint8)
    return PackedMatrix(
        rows=x.shape[0],
        columns=x.shape[1],
        step=step,
        zero=zero,
        data=base64.b64encode(bytes(data.flatten().tolist())).decode("ascii"),
    )


@dataclass
class _Shown:
    """A sequence that is shown; how many tokens of an image there are is known once attention is seen."""

    length: int | None
    tokens: list[int] | None = None
    image: PackedMatrix | None = None


class AttentionPictures:
    """P, V, PV and pi of the first few sequences, and sums over all images for patch maps."""

    def __init__(self, sequences: int) -> None:
        self.wanted = sequences
        self.sequences: list[_Shown] = []
        self.layers: list[LayerPicture] = []
        self.bytes = 0
        self.patch_outliers: dict[int, Tensor] = {}
        self.patch_attention: dict[int, Tensor] = {}
        self.patch_values: dict[int, list[float]] = {}
        self._batch: list[tuple[int, int]] = []
        self._outlier_tokens: dict[int, Tensor] = {}
        self.images = False

    def begin(self, tokens_BT: Tensor | None, valid_BT: Tensor | None, pixels: Tensor | None) -> None:
        """Choose which sequences of this batch to keep."""
        self._batch = []
        self._outlier_tokens = {}
        self.images = pixels is not None
        n_batch = len(tokens_BT) if tokens_BT is not None else len(pixels) if pixels is not None else 0
        for row in range(n_batch):
            if len(self.sequences) >= self.wanted:
                return
            self._batch.append((row, len(self.sequences)))
            if tokens_BT is not None:
                length = int(valid_BT[row].sum()) if valid_BT is not None else tokens_BT.shape[1]
                kept = tokens_BT[row][valid_BT[row]] if valid_BT is not None else tokens_BT[row]
                self.sequences.append(_Shown(min(length, LONGEST), tokens=kept[:LONGEST].tolist()))
            else:
                assert pixels is not None
                grey = torch.nn.functional.interpolate(
                    pixels[row : row + 1].mean(1, keepdim=True).float(), size=(32, 32)
                )
                low, high = grey.min(), grey.max()
                image = pack((grey[0, 0] - low) / (high - low).clamp(min=1e-9), symmetric=False)
                self.sequences.append(_Shown(None, image=image))

    def on_site(self, site: str, layer: int, outlier_BTd: Tensor) -> None:
        """Which patches hold outliers: at the FFN's output, or else at the block's."""
        if not self.images or (site == "ffn_residual" and layer in self._outlier_tokens):
            return
        counts = outlier_BTd.sum((0, 2)).double()
        self.patch_outliers[layer] = self.patch_outliers.get(layer, torch.zeros_like(counts)) + counts
        self._outlier_tokens[layer] = outlier_BTd.any(-1)

    def on_attention(self, layer: int, seen: AttentionRecord) -> None:
        seen = seen.of_text()
        if self.images:
            self._patches(layer, seen)
        for row, sequence in self._batch:
            length = self.sequences[sequence].length or min(seen.probabilities_BHQK.shape[-1], LONGEST)
            self.sequences[sequence].length = length
            heads = seen.probabilities_BHQK.shape[1]
            width = seen.value_BHKD.shape[-1]
            size = heads * length * (length + 2 * width)
            if self.bytes + size > MOST_BYTES or seen.probabilities_BHQK.shape[-1] != seen.probabilities_BHQK.shape[-2]:
                continue
            self.bytes += size
            # Padding may stand on either side; the pictures show the real tokens.
            probs = seen.probabilities_BHQK[row]
            kept = _real(seen, row)[:length]
            pictures = [
                HeadPicture(
                    P=pack(probs[head][kept][:, kept], symmetric=False),
                    V=pack(seen.value_BHKD[row, head][kept], symmetric=True),
                    PV=pack(seen.context_BQHD[row, kept, head], symmetric=True),
                    **({} if seen.gate is None else {"pi": [round(v, 4) for v in _gate(seen, row, head, kept)]}),
                )
                for head in range(heads)
            ]
            self.layers.append(LayerPicture(sequence=sequence, layer=layer, heads=pictures))

    def _patches(self, layer: int, seen: AttentionRecord) -> None:
        attention = seen.probabilities_BHQK.float().mean((0, 1, 2)).double() * len(seen.probabilities_BHQK)
        self.patch_attention[layer] = self.patch_attention.get(layer, torch.zeros_like(attention)) + attention
        # The sites of a block are seen after its attention, so outliers are those the previous block left behind.
        before = self._outlier_tokens.get(layer - 1)
        if before is not None and before.shape[1] == seen.value_BHKD.shape[2]:
            norms = seen.value_BHKD.float().norm(dim=-1).mean(1)
            sums = self.patch_values.setdefault(layer, [0.0, 0.0, 0.0, 0.0])
            for offset, chosen in ((0, before), (2, ~before)):
                sums[offset] += float(norms[chosen].sum())
                sums[offset + 1] += float(chosen.sum())

    def pictures(self, token_text: Callable[[int], str]) -> Pictures:
        """What was kept, as a report holds it."""
        sequences = [
            SequencePicture(length=one.length, image=one.image)
            if one.tokens is None
            else SequencePicture(length=one.length, tokens=[token_text(token) for token in one.tokens])
            for one in self.sequences
        ]
        patches = [self._patch_row(layer) for layer in sorted(self.patch_attention)]
        return Pictures(sequences=sequences, attention=self.layers, **({"patches": patches} if patches else {}))

    def _patch_row(self, layer: int) -> PatchPicture:
        attention = self.patch_attention[layer]
        outliers = self.patch_outliers.get(layer, torch.zeros_like(attention))
        side = math.isqrt(len(attention))
        extra = len(attention) - side * side
        with_outliers, n_with, without, n_without = self.patch_values.get(layer, [0.0, 0.0, 0.0, 0.0])
        return PatchPicture(
            layer=layer,
            side=side,
            extra_tokens=extra,  # the class token and registers stand before the patches
            attention=attention.tolist(),
            outliers=outliers.tolist(),
            value_norm_outlier_patches=with_outliers / n_with if n_with else None,
            value_norm_other_patches=without / n_without if n_without else None,
        )


def _real(seen: AttentionRecord, row: int) -> Tensor:
    if seen.visible is None:
        return torch.arange(seen.probabilities_BHQK.shape[-1])
    visible = seen.visible[row if len(seen.visible) > 1 else 0, 0]
    return visible.any(0).nonzero().flatten()


def _gate(seen: AttentionRecord, row: int, head: int, kept: Tensor) -> list[float]:
    assert seen.gate is not None
    gates: list[float] = seen.gate[row, kept, head].float().mean(-1).tolist()
    return gates
