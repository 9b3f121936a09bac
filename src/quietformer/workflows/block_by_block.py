"""A model calibrated, smoothed, measured and written one block at a time, with the weights of one block in memory.

Two hollow models share the weights that are loaded: the original, and the one with quantizers. Batches wait between the blocks as
hidden states on disk: calibration and evaluation batches in fp32, and both again as the quantized model sees them. Every range
is found from the tensors that `calibrate_` would see, in the same order, so the results are the same bit for bit.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn
from transformers import PreTrainedModel

from quietformer.analysis.evaluate import Evaluation, Reference, evaluate, reference_run
from quietformer.architectures.block_chain import BlockChain, Call
from quietformer.architectures.forward import Batch, run
from quietformer.architectures.hidden_states import HiddenStates
from quietformer.config.quantization import QuantSpec
from quietformer.config.tasks import MeasuredTask
from quietformer.deployment.compressed_weights import integer_layers, store_
from quietformer.deployment.shards import ShardWriter
from quietformer.errors import QuietformerError
from quietformer.models.blocks_from_disk import ModelOnDisk, hollow_, put_, release_memory
from quietformer.progress import Progress
from quietformer.quant.calibration import quantize_
from quietformer.quant.insertion import forget_weights_, quantizers
from quietformer.quant.part_calibration import calibrate_part_
from quietformer.quant.quantizer import Quantizer
from quietformer.transforms.channel_ranges import reading_inputs
from quietformer.transforms.equivalence import same_up_to_rounding
from quietformer.transforms.smoothquant import Exponent, LinearGroup, Migration, find_groups, migrate_groups_, rows_for

Placed = dict[str, Quantizer]


@dataclass(frozen=True)
class Work:
    """What is to be done with a model."""

    spec: QuantSpec
    alpha: float | Exponent | None
    """The exponent of smoothing, or a function that chooses it; None for no smoothing."""
    calibration: Sequence[Batch]
    evaluation: Sequence[Batch]
    devices: tuple[str, ...] = ("cpu",)


class Stream:
    """Some batches on their way through the blocks of one of the two models."""

    def __init__(self, chain: BlockChain, batches: Sequence[Batch], folder: Path) -> None:
        self.chain, self.batches, self.states = chain, batches, HiddenStates(folder)
        self.calls: dict[int, list[Call]] = {}

    def begin(self, place: int) -> None:
        hidden, self.calls[place] = self.chain.begin(self.batches[place])
        self.states.write(place, hidden)

    def step(self, block: int, place: int) -> None:
        hidden = self.states.read(place)
        self.states.write(place, self.chain.run_block(block, hidden, self.calls[place][block]))

    def each(self, work: Callable[[int], object]) -> list[Callable[[], object]]:
        """The work for every batch, to be called in order."""
        return [lambda place=place: work(place) for place in range(len(self.batches))]  # type: ignore[misc]


class BlockByBlock:
    """One pass over a model on disk: `front`, `block` for every block, and `tail`."""

    def __init__(
        self, disk: ModelOnDisk, hollow: PreTrainedModel, work: Work, scratch: Path, progress: Progress
    ) -> None:
        self.disk, self.work, self.progress = disk, work, progress
        self.seconds: dict[str, float] = defaultdict(float)
        self.waiting: Placed = {}
        self.plain = BlockChain(hollow)
        few = {name: tensor[:2] for name, tensor in work.calibration[0].items()}
        self.plain.check(few)
        self.groups = [] if work.alpha is None else find_groups(self.plain.model, few)
        model = disk.hollow()
        self.plan = quantize_(model, work.spec, work.calibration[0])
        self.chain = BlockChain(model)
        self.pairs = integer_layers(model, self.plain.model)
        self.placed = self._by_block(quantizers(model))
        self.smoothed = Migration()
        for group in self.groups:
            if self._home(group) is None:
                self.smoothed.left[group.names[0]] = "it is not within one block"
        self.original = Stream(self.plain, work.calibration if self.groups else [], scratch / "original")
        self.reference = Stream(self.plain, work.evaluation, scratch / "reference")
        self.observed = Stream(self.chain, work.calibration, scratch / "observed")
        self.rounded = Stream(self.chain, work.evaluation, scratch / "rounded")

    @property
    def blocks(self) -> int:
        return len(self.chain.blocks)

    # ---- which tensor belongs to which part
    def _block_of(self, name: str) -> int | None:
        """The block that a module or tensor of this name is in; None outside of all."""
        for block in self.plain.blocks:
            if name == block.name or name.startswith((f"{block.name}.", f"{block.name}:")):
                return block.index
        return None

    def _by_block(self, every: Placed) -> dict[int | None, Placed]:
        found: dict[int | None, Placed] = defaultdict(dict)
        for site, quantizer in every.items():
            found[self._block_of(site)][site] = quantizer
        return found

    def _home(self, group: LinearGroup) -> int | None:
        """The block that a group and the modules its division goes to are all in."""
        homes = {self._block_of(name) for name in group.names}
        names = {id(module): name for name, module in self.plain.model.named_modules()}
        homes |= {self._block_of(names[id(one)]) for one in (group.norm, group.values) if one is not None}
        return homes.pop() if len(homes) == 1 else None

    def _names(self, index: int | None) -> set[str]:
        model = self.plain.model
        return {name for name in (*model.state_dict(), *dict(model.named_parameters(remove_duplicate=False)))
                if self._block_of(name) == index}  # fmt: skip

    # ---- loading and forgetting
    def _load(self, index: int | None) -> None:
        """The weights of one part, into both models; it is None for everything outside of the blocks."""
        begin = time.perf_counter()
        device = self.work.devices[0 if index is None else index * len(self.work.devices) // self.blocks]
        wanted = self._names(index)
        self.disk.fill_(self.plain.model, wanted, "cpu" if index is None else device)
        for name, parameter in self.plain.model.named_parameters(remove_duplicate=False):
            if name in wanted:
                put_(self.chain.model, name, parameter)
        for name, buffer in self.chain.model.named_buffers():
            if name in wanted:
                buffer.copy_(self.plain.model.get_buffer(name))
        if index is not None and device != "cpu":
            self._move(index, device)
        self.seconds["reading"] += time.perf_counter() - begin

    def _move(self, index: int, device: str) -> None:
        for chain in (self.plain, self.chain):
            chain.blocks[index].module.to(device)

    def _forget(self) -> None:
        forget_weights_(self.chain.model)
        hollow_(self.plain.model)
        hollow_(self.chain.model)
        release_memory()

    # ---- the passes
    def front(self) -> None:
        """What is before the blocks, for all batches."""
        self.progress.step("reading what is outside of the blocks")
        self._load(None)
        self.waiting = self._calibrate(None, self.observed.each(self.observed.begin))
        self._set_modes(None)
        for stream in (self.original, self.reference, self.rounded):
            for begin in stream.each(stream.begin):
                begin()
        self._forget()

    def block(self, index: int, writer: ShardWriter) -> None:
        """One block: loaded, measured, smoothed, calibrated, measured again as integers, and written."""
        self.progress.step("layer by layer", index, self.blocks)
        self._load(index)
        begin, smoothing = time.perf_counter(), self.seconds["smoothing"]
        for step in self.reference.each(lambda place: self.reference.step(index, place)):
            step()
        self._smooth(index)
        runs = self.observed.each(lambda place: self.observed.step(index, place))
        if waiting := self._calibrate(index, runs):
            raise QuietformerError(
                f"{min(waiting)} saw no data in calibration; calibrate on input that reaches it, or exclude it with a rule"
            )
        self._set_modes(index)
        for step in self.rounded.each(lambda place: self.rounded.step(index, place)):
            step()
        self.seconds["running"] += time.perf_counter() - begin - (self.seconds["smoothing"] - smoothing)
        if self.work.devices != ("cpu",):
            self._move(index, "cpu")
        self._write(index, writer)
        self._forget()

    def tail(self, writer: ShardWriter, task: MeasuredTask) -> tuple[Reference, Evaluation]:
        """What is after the blocks, and the metrics of the original and of the integers."""
        self.progress.step("layer by layer", self.blocks, self.blocks)
        self._load(None)
        if self.waiting:
            with self.chain.answering(self.observed.states.read):
                runs = self.observed.each(lambda place: run(self.chain.model, self.work.calibration[place]))
                if left := self._calibrate(None, runs, self.waiting):
                    raise QuietformerError(
                        f"{min(left)} saw no data in calibration; calibrate on input that reaches it, or exclude it with a rule"
                    )
        self._set_modes(None)
        with self.plain.answering(self.reference.states.read):
            original = reference_run(self.plain.model, self.work.evaluation, task, progress=self.progress)
        with self.chain.answering(self.rounded.states.read):
            found = evaluate(self.chain.model, self.work.evaluation, task, original, progress=self.progress)
        self._write(None, writer)
        self._forget()
        writer.finish()
        return original, found

    def _calibrate(
        self, index: int | None, runs: list[Callable[[], object]], placed: Placed | None = None
    ) -> dict[str, Quantizer]:
        return calibrate_part_(self.chain.model, self.placed[index] if placed is None else placed, self.work.spec, runs)

    def _set_modes(self, index: int | None) -> None:
        """What is written as integers is measured as integers; what the format cannot hold, in full precision."""
        for name, pair in self.pairs.items():
            if self._block_of(name) == index:
                for quantizer in pair:
                    if quantizer.site not in self.waiting or quantizer.calibrated:
                        quantizer.mode = "quantize"

    def _smooth(self, index: int) -> None:
        groups = [group for group in self.groups if self._home(group) == index]
        alpha = self.work.alpha
        if not self.groups or alpha is None:
            return
        block = self.plain.blocks[index].module
        first: Tensor = self.original.states.read(0)
        modules: list[nn.Module] = [module for group in groups for module in group.projections]
        with reading_inputs(modules, rows=rows_for(alpha), batches=len(self.original.batches)) as inputs:
            for step in self.original.each(lambda place: self.original.step(index, place)):
                step()
        before = self.original.states.read(0)
        begin = time.perf_counter()
        migrate_groups_(block, groups, inputs, alpha, self.smoothed, only_folded=True)
        after = self.plain.run_block(index, first, self.original.calls[0][index])
        if not same_up_to_rounding(before, after):
            raise QuietformerError(
                f"{self.plain.blocks[index].name} gives different outputs after smoothing, so it cannot be smoothed; "
                "pass --no-search"
            )
        self.seconds["smoothing"] += time.perf_counter() - begin

    def _write(self, index: int | None, writer: ShardWriter) -> None:
        """The tensors of one part, with int8 weights where there are any; of tied ones the first."""
        begin = time.perf_counter()
        model = self.plain.model
        tied = set(getattr(model, "all_tied_weights_keys", None) or ())
        for name, pair in self.pairs.items():
            if self._block_of(name) == index:
                store_(model.get_submodule(name), *pair)
        tensors = {name: tensor for name, tensor in model.state_dict().items()
                   if self._block_of(name) == index and name not in tied}  # fmt: skip
        writer.add(tensors)
        self.seconds["writing"] += time.perf_counter() - begin
