"""What the search for weight ranges of least error costs: ours against trying each candidate on the whole tensor.

    python -m experiments.speed.range_search [--threads N] [--peer-share S] [--keep]

All quantized weights of a BERT-base-shaped model, symmetric 8 bit. The peer's way: for each of 100 candidate ranges copy
the quantizer, quantize the tensor and back with plain torch operations, keep the range of least mean squared error. It
is timed on a share of the tensors of each shape, taking turns with ours, and the ratio is that of these same tensors;
for the whole model its time is scaled by the number of values. The word embedding is only in the latter, to bound the time.
Processor time is given with and without the system's part: the peer's large temporaries make the system work for memory,
how much depends on the machine, and the ratio to quote is the one without.
"""

from __future__ import annotations

import argparse
import copy
import platform
import resource
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch
import transformers
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from experiments.provenance import keep, keep_option_
from quietformer.quant.affine import fake_quantize, qparams
from quietformer.quant.estimators.mse import MSE

Range = tuple[Tensor, Tensor]
BITS = 8
CANDIDATES = 100
LARGEST_FOR_PEER = 5_000_000  # values
TURNS = 5  # of ours, whose time is else too short to tell; the mean counts


@dataclass
class PeerQuantizer:
    """The state that a quantizer object carries, copied for each candidate."""

    scale: Tensor
    zero_point: Tensor
    bits: int = BITS

    def set_range_(self, largest: Tensor) -> None:
        self.scale = largest / (2 ** (self.bits - 1) - 1)

    def __call__(self, x: Tensor) -> Tensor:
        scale, zero = (p.view(-1, *[1] * (x.dim() - 1)) if p.dim() else p for p in (self.scale, self.zero_point))
        integers = torch.clamp(torch.round(x / scale) + zero, 0, 2**self.bits - 1)
        return (integers - zero) * scale


def peer_search(x: Tensor, axis: int | None) -> Range:
    rest = tuple(range(1, x.dim()))
    largest = x.abs().amax(rest) if axis == 0 and rest else x.abs() if axis == 0 else x.abs().max()
    quantizer = PeerQuantizer(torch.ones_like(largest), torch.full_like(largest, 2 ** (BITS - 1)))
    best, least = largest, torch.full_like(largest, torch.inf)
    for step in range(1, CANDIDATES + 1):
        candidate = largest * (step / CANDIDATES)
        trial = copy.deepcopy(quantizer)
        trial.set_range_(candidate)
        square = (trial(x) - x) ** 2
        error = square.mean(rest) if axis == 0 and rest else square if axis == 0 else square.mean()
        best, least = torch.where(error < least, candidate, best), torch.minimum(error, least)
    return -best, best


def our_search(x: Tensor, axis: int | None) -> Range:
    estimator = MSE(candidates=CANDIDATES).build(bits=BITS, symmetric=True, axis=axis)
    estimator.observe(x)
    return estimator.range()


def weights() -> dict[str, Tensor]:
    """Linear, embedding and LayerNorm weights of BERT-base, as training leaves them: normal with a few outliers."""
    with torch.device("meta"):
        model = BertModel(BertConfig())
    generator = torch.Generator().manual_seed(0)
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            x = torch.randn(module.weight.shape, generator=generator) * 0.04
            far = torch.randint(x.numel(), (max(1, x.numel() // 20_000),), generator=generator)
            x.view(-1)[far] *= 5
            found[name] = x
        elif isinstance(module, nn.LayerNorm):
            found[name] = 0.85 + 0.06 * torch.randn(module.weight.shape, generator=generator)
    return found


def subset(tensors: dict[str, Tensor], share: float) -> list[str]:
    """That share of the tensors of each shape, at least one, without the very large."""
    by_shape = defaultdict(list)
    for name, x in tensors.items():
        if x.numel() <= LARGEST_FOR_PEER:
            by_shape[x.shape].append(name)
    return [name for names in by_shape.values() for name in names[: max(1, round(share * len(names)))]]


def square_error(x: Tensor, found: Range, axis: int | None) -> float:
    scale, zero = qparams(*found, bits=BITS, symmetric=True)
    return float((fake_quantize(x, scale, zero, bits=BITS, axis=axis) - x).double().square().sum())


class Clock:
    """Processor time so far: of the program, and of the system for it."""

    def __init__(self) -> None:
        self.user = self.system = 0.0

    def time(self, search: Callable[[Tensor, int | None], Range], x: Tensor, axis: int | None) -> Range:
        before = resource.getrusage(resource.RUSAGE_SELF)
        found = search(x, axis)
        after = resource.getrusage(resource.RUSAGE_SELF)
        self.user += after.ru_utime - before.ru_utime
        self.system += after.ru_stime - before.ru_stime
        return found


def compare(tensors: dict[str, Tensor], both: list[str], axis: int | None) -> dict[str, float]:
    """Time of either way on the tensors of both, of ours on the others, and the errors they leave."""
    ours, theirs, ours_alone = Clock(), Clock(), Clock()
    our_error = their_error = 0.0
    for name, x in tensors.items():
        if name in both:
            for _ in range(TURNS):
                found = ours.time(our_search, x, axis)
            our_error += square_error(x, found, axis)
            their_error += square_error(x, theirs.time(peer_search, x, axis), axis)
        else:
            ours_alone.time(our_search, x, axis)
    scale = sum(x.numel() for x in tensors.values()) / sum(tensors[name].numel() for name in both)
    ours.user, ours.system = ours.user / TURNS, ours.system / TURNS
    everything = ours.user + ours_alone.user
    return {
        "tensors_timed_both_ways": len(both),
        "ours_seconds": ours.user,
        "peer_seconds": theirs.user,
        "ratio": theirs.user / ours.user,
        "ratio_with_system_time": (theirs.user + theirs.system) / (ours.user + ours.system),
        "ours_seconds_all": everything,
        "peer_seconds_all_extrapolated": theirs.user * scale,
        "ratio_all_extrapolated": theirs.user * scale / everything,
        "error_over_peers": our_error / their_error,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peer-share", type=float, default=0.1, help="of the tensors of each shape")
    keep_option_(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    tensors = weights()
    both = subset(tensors, arguments.peer_share)
    our_search(torch.randn(100_000), None), our_search(torch.randn(10, 768), 0), peer_search(torch.randn(1000), None)
    figures: dict[str, object] = {
        "tensors": len(tensors),
        "values": sum(x.numel() for x in tensors.values()),
        "candidates": CANDIDATES,
    }
    print(f"{figures['tensors']} tensors, {figures['values']:,} values, {arguments.threads} thread(s)")
    for what, axis in [("per_tensor", None), ("per_channel", 0)]:
        one = compare(tensors, both, axis)
        figures[what] = one
        print(
            f"{what}: {one['ratio']:.1f} times less processor time on the {one['tensors_timed_both_ways']} tensors timed "
            f"both ways ({one['ours_seconds']:.2f} s against {one['peer_seconds']:.2f} s; "
            f"{one['ratio_with_system_time']:.1f} times with the system's), {one['ratio_all_extrapolated']:.1f} times on all "
            f"({one['ours_seconds_all']:.2f} s against {one['peer_seconds_all_extrapolated']:.1f} s, extrapolated); "
            f"squared error {one['error_over_peers']:.4f} of the peer's"
        )
    figures["peak_memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    figures["threads"] = arguments.threads
    figures["versions"] = {
        "torch": torch.__version__, "transformers": transformers.__version__, "python": platform.python_version()
    }  # fmt: skip
    if arguments.keep:
        keep(__file__, figures)


if __name__ == "__main__":
    main()
