"""The quantizer of one tensor: observes values during calibration, then rounds them to its grid."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from quietformer.attention.core import Tap
from quietformer.errors import QuietformerError, SpecError
from quietformer.quant.affine import fake_quantize, fake_quantize_tokens, levels, qparams
from quietformer.quant.estimators.base import RangeEstimator

MARK = "quietformer::Site"

marking: ContextVar[bool] = ContextVar("marking", default=False)
"""True while our own exporter traces: quantizers then leave marks in the graph instead of computing."""

_CODE = re.compile(r"([us])([0-9]{1,2})(?:@([0-9]|token|[0-9]{1,5}x[0-9]{1,5}|[0-9]{1,4}passes))?")


Mode = Literal["quantize", "observe", "pass"]


class _OwnModes(threading.local):
    """The modes that quantizers have in this thread alone."""

    modes: dict[Quantizer, Mode] | None = None


_own = _OwnModes()


@contextlib.contextmanager
def own_modes() -> Iterator[None]:
    """Modes that are set inside hold for this thread, and until the end of the context."""
    before = _own.modes
    _own.modes = dict(before or {})
    try:
        yield
    finally:
        _own.modes = before


class _Calls(threading.local):
    """How often a quantizer was called in this thread since its model began."""

    def __init__(self) -> None:
        self.of: WeakKeyDictionary[Quantizer, int] = WeakKeyDictionary()


_calls = _Calls()


@dataclass(frozen=True)
class Grid:
    """Bits, symmetry and what has a scale of its own; written as `u8`, `s8@0`, `s8@token`, `u8@3x64` or `u8@12passes`."""

    bits: int
    symmetric: bool
    axis: int | None = None  # the channel dimension; None: one scale for the whole tensor
    token: bool = False  # a scale for each token, found while the model runs; such a grid is symmetric
    heads: tuple[int, int] | None = (
        None  # keys or values (B, heads, tokens, features): a scale for each feature of each head
    )
    passes: int | None = None  # a scale for each of so many calls of a module that layers share

    def __str__(self) -> str:
        where = "@token" if self.token else "" if self.axis is None else f"@{self.axis}"
        if self.heads is not None:
            where = f"@{self.heads[0]}x{self.heads[1]}"
        if self.passes is not None:
            where = f"@{self.passes}passes"
        return f"{'s' if self.symmetric else 'u'}{self.bits}{where}"

    @classmethod
    def parse(cls, code: str) -> Grid:
        match = _CODE.fullmatch(code)
        if match is None or not 2 <= int(match[2]) <= 16 or (match[1], match[3]) == ("u", "token"):
            raise SpecError(
                f"cannot read grid {code!r}; write u8, s8, s8@0, s8@token, u8@3x64 or u8@12passes, with 2 to 16 bits"
            )
        if (match[3] or "").endswith("passes"):
            return cls(int(match[2]), match[1] == "s", passes=max(1, int(match[3].removesuffix("passes"))))
        token = match[3] == "token"
        if "x" in (match[3] or ""):
            heads, features = map(int, match[3].split("x"))
            return cls(int(match[2]), match[1] == "s", heads=(heads, features))
        return cls(int(match[2]), match[1] == "s", None if token or match[3] is None else int(match[3]), token)


CHANNELS = 2
"""The dimension of the channels in what `by_channel` gives."""


def by_channel(x_BGTD: Tensor) -> Tensor:
    """Keys or values of several heads as (B, T, G D): one channel for each feature of each head."""
    return x_BGTD.transpose(1, 2).flatten(2)


class Quantizer(Tap):
    """Rounds a tensor to its grid, observes it, or passes it unchanged, depending on `mode`."""

    scale_pattern: Tensor
    zero_point: Tensor

    def __init__(self, site: str, grid: Grid, channels: int | None = None) -> None:
        super().__init__()
        self.site = site
        self.grid = grid
        self._mode: Mode = "quantize"
        self.estimator: RangeEstimator | None = None
        if grid.token:
            return  # nothing to calibrate, and nothing to store
        if grid.heads is not None:
            channels = grid.heads[0] * grid.heads[1]
        elif grid.passes is not None:
            channels = grid.passes
        shape = () if channels is None else (channels,)
        # The scale is stored as the bit pattern of its float32 value: casting the model to bfloat16, as loaders do with every
        # floating-point tensor, must not change the grid.
        self.register_buffer("scale_pattern", torch.zeros(shape, dtype=torch.int32))
        self.register_buffer("zero_point", torch.zeros(shape, dtype=torch.int32))

    @property
    def mode(self) -> Mode:
        """What it does to tensors; inside `own_modes` a thread has its own answer, and others are not affected."""
        if torch.compiler.is_compiling() or _own.modes is None:
            return self._mode
        return _own.modes.get(self, self._mode)

    @mode.setter
    def mode(self, mode: Mode) -> None:
        if _own.modes is None:
            self._mode = mode
        else:
            _own.modes[self] = mode

    @property
    def scale(self) -> Tensor:
        return self.scale_pattern.view(torch.float32)

    @property
    def calibrated(self) -> bool:
        """Whether scale and zero point are usable: before calibration the scale is zero, in a damaged file it may be infinite."""
        if self.grid.token:
            return True
        usable = (self.scale > 0) & self.scale.isfinite()
        return bool((usable & (self.zero_point >= 0) & (self.zero_point <= levels(self.grid.bits))).all())

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def begin_passes_(self) -> None:
        """Count calls from here on: the model begins."""
        _calls.of.pop(self, None)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _count(self) -> None:
        _calls.of[self] = _calls.of.get(self, 0) + 1

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _counted(self) -> int:
        return _calls.of.get(self, 1)

    @property
    def place(self) -> int:
        """Which of its scales holds for the call that is running, or was the last."""
        return 0 if self.grid.passes is None else (self._counted() - 1) % self.grid.passes

    def grid_at(self, place: int) -> tuple[Tensor, Tensor]:
        """Scale and zero point of one call."""
        return (
            (self.scale, self.zero_point) if self.grid.passes is None else (self.scale[place], self.zero_point[place])
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.grid.passes is not None:
            self._count()
        if marking.get():
            return _mark(x, self.site, self.place)
        if self.mode == "quantize":
            return self.rounded(x)
        if self.mode == "observe":
            assert self.estimator is not None
            self._observe(x)
        return x

    def rounded(self, x: Tensor) -> Tensor:
        """The tensor on the grid, whatever the mode."""
        if self.grid.token:
            return fake_quantize_tokens(x, bits=self.grid.bits)
        if self.grid.heads is not None:
            apart = x.dim() == 4  # what observes has its heads together already
            rows_BTd = by_channel(x) if apart else x
            rounded_BTd = fake_quantize(rows_BTd, self.scale, self.zero_point, bits=self.grid.bits, axis=CHANNELS)
            return rounded_BTd.reshape(*rows_BTd.shape[:2], *self.grid.heads).transpose(1, 2) if apart else rounded_BTd
        scale, zero_point = self.grid_at(self.place)
        return fake_quantize(x, scale, zero_point, bits=self.grid.bits, axis=self.grid.axis)

    def _observe(self, x: Tensor) -> None:
        assert self.estimator is not None
        try:
            self.estimator.observe(x if self.grid.heads is None else by_channel(x))
        except QuietformerError as error:
            raise QuietformerError(f"{self.site}: {error}") from None

    def found_range(self) -> tuple[Tensor, Tensor]:
        """The range that the estimator has found."""
        assert self.estimator is not None
        if not self.estimator.seen:
            raise QuietformerError(
                f"{self.site} saw no data in calibration; calibrate on input that reaches it, or exclude it with a rule"
            )
        return self.estimator.range()

    def set_range_(self, lo: Tensor, hi: Tensor) -> None:
        """Set the grid that covers this range and zero."""
        scale, zero_point = qparams(lo, hi, bits=self.grid.bits, symmetric=self.grid.symmetric)
        self.scale_pattern.copy_(scale.view(torch.int32))
        self.zero_point.copy_(zero_point)

    def range(self) -> tuple[Tensor, Tensor]:
        """The lowest and highest value of the grid."""
        zero = self.zero_point.float()
        return -zero * self.scale, (levels(self.grid.bits) - zero) * self.scale

    def extra_repr(self) -> str:
        return f"{self.site}, {self.grid}"


def _mark(x: Tensor, site: str, place: int) -> Tensor:
    """A custom node in the exported graph, which our exporter replaces by the calibrated quantizer."""
    import torch.onnx.ops

    told: Any = {"site": site, "place": place}
    return torch.onnx.ops.symbolic(MARK, (x,), told, dtype=x.dtype, shape=x.shape, version=1)
