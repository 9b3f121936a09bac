"""What one forward and backward pass costs in operations and memory, found without computing it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count
from transformers import PreTrainedModel

from quietformer.architectures.layout import find_blocks
from quietformer.config.recipe import Recipe
from quietformer.errors import QuietformerError

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Footprint:
    """Of one pass of one micro batch; bytes are of what autograd keeps for the backward pass, parameters left out."""

    forward: int
    backward: int
    blocks_forward: int
    saved: int
    saved_checkpointed: int

    def flops(self, checkpointing: bool) -> int:
        """Gradient checkpointing runs the blocks forward twice."""
        return self.forward + self.backward + (self.blocks_forward if checkpointing else 0)

    def activations(self, checkpointing: bool) -> int:
        return self.saved_checkpointed if checkpointing else self.saved


def fake_(model: nn.Module, device: str = "cpu") -> FakeTensorMode:
    """Give a model on the meta device tensors that claim to be on a real one, and hold nothing.

    On the meta device itself torch chooses other kernels: attention that keeps every score, and no autocast.
    """
    # Inputs and masks are real: models look into them, and they are small.
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    made: dict[int, Tensor] = {}  # tied weights stay tied
    for module in list(model.modules()):
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is None:
                    continue
                if id(tensor) not in made:
                    with mode:
                        fake = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
                    trained = isinstance(tensor, nn.Parameter)
                    made[id(tensor)] = nn.Parameter(fake, requires_grad=tensor.requires_grad) if trained else fake
                # Written past the module's own checks, which take a fake parameter for a plain tensor.
                tensors[name] = made[id(tensor)]  # type: ignore[assignment]
    return mode


def trace(model: PreTrainedModel, recipe: Recipe, batch: int) -> Footprint:
    """The footprint of a model that has been through `fake_`, at this micro batch."""
    device = next(model.parameters()).device
    model.train()
    model.zero_grad(set_to_none=True)
    saved = _Saved(model)
    inputs = example_inputs(model, recipe, batch)
    with FlopCounterMode(display=False, custom_mapping=_CPU_ATTENTION) as counter:
        with saved, autocast(recipe, device.type), _Fused(meant_for_gpu(recipe)):
            loss = model(**inputs).loss
        forward = counter.get_total_flops()
        counts: Any = counter.get_flop_counts()
        root = type(model).__name__
        blocks = sum(sum(counts.get(f"{root}.{name}", {}).values()) for name in saved.blocks)
        kept, checkpointed = saved.total(), saved.total_checkpointed()
        loss.backward()
        backward = counter.get_total_flops() - forward
    return Footprint(forward, backward, blocks, kept, checkpointed)


def saved_bytes(model: PreTrainedModel, recipe: Recipe, batch: int) -> int:
    """What alone is kept for the backward pass, in half the time of `trace`."""
    saved = _Saved(model)
    with saved, autocast(recipe, next(model.parameters()).device.type), _Fused(meant_for_gpu(recipe)):
        loss = model.train()(**example_inputs(model, recipe, batch)).loss
    kept = saved.total_checkpointed() if recipe.training.gradient_checkpointing else saved.total()
    del loss  # with it goes the graph, and with the graph what the storages were told apart by
    return kept


def autocast(recipe: Recipe, device: str) -> torch.autocast:
    """Mixed precision as Accelerate does it: weights in float32, operations in half precision where that is safe."""
    half = HALF.get(recipe.training.precision)
    return torch.autocast(device, dtype=half or torch.bfloat16, enabled=half is not None)


def meant_for_gpu(recipe: Recipe) -> bool:
    """Whether this run can only be for another machine: nothing trains in float16 on a CPU."""
    return recipe.training.precision == "fp16" and not torch.cuda.is_available()


class _Fused(TorchFunctionMode):
    """Lets a CPU's attention stand for a GPU's, which is fused with dropout too: the same is kept as without dropout."""

    def __init__(self, active: bool) -> None:
        super().__init__()
        self.active = active

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.active and func is nn.functional.scaled_dot_product_attention:
            kwargs = {**(kwargs or {}), "dropout_p": 0.0}
        return func(*args, **(kwargs or {}))


def example_inputs(model: PreTrainedModel, recipe: Recipe, batch: int, device: str = "cpu") -> dict[str, Tensor]:
    """A batch of the right shape, without content."""
    config: Any = model.config
    if recipe.task == "images":
        size = config.image_size
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        pixels = torch.zeros(batch, config.num_channels, height, width, device=device)
        return {"pixel_values": pixels, "labels": torch.zeros(batch, dtype=torch.long, device=device)}
    # Not zeros alone: a classifier on a decoder looks for the last token that is not padding.
    ids = torch.arange(recipe.data.length, device=device).remainder(7).add(3).repeat(batch, 1)
    if int(ids.max()) >= config.vocab_size:
        raise QuietformerError(
            f"a vocabulary of {config.vocab_size} tokens is too small to plan with; give at least 10"
        )
    if recipe.task == "pairs":
        mask = torch.ones_like(ids)
        mask[0, -1] = 0  # pairs are padded, and a mask without holes is dropped
        return {"input_ids": ids, "attention_mask": mask, "labels": torch.zeros(batch, dtype=torch.long, device=device)}
    keep = {"use_cache": False} if recipe.task == "causal" and hasattr(config, "use_cache") else {}
    return {"input_ids": ids, "labels": ids, **keep}  # type: ignore[dict-item]


class _Saved:
    """The storages that autograd keeps, and the block that kept each first."""

    def __init__(self, model: PreTrainedModel) -> None:
        blocks = find_blocks(model)
        self.blocks = [block.name for block in blocks]
        self._modules = [block.module for block in blocks]
        self._parameters = {_storage(p) for p in model.parameters()}
        self._bytes: dict[int, int] = {}
        self._owner: dict[int, int | None] = {}
        self._inputs: dict[int, int] = {}
        self._now: int | None = None

    def __enter__(self) -> None:
        self._hooks: list[Any] = []
        for index, module in enumerate(self._modules):
            self._hooks.append(module.register_forward_pre_hook(self._enters(index), with_kwargs=True))
            self._hooks.append(module.register_forward_hook(self._leaves, always_call=True))
        self._context = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)
        self._context.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)
        for hook in self._hooks:
            hook.remove()

    def total(self) -> int:
        return sum(self._bytes.values())

    def total_checkpointed(self) -> int:
        """Outside the blocks as ever; of the blocks their inputs, and all of the one that is being run again."""
        within = [0] * len(self.blocks)
        outside = dict(self._inputs)
        for storage, size in self._bytes.items():
            owner = self._owner[storage]
            if owner is None:
                outside[storage] = size
            elif storage not in self._inputs:
                within[owner] += size
        return sum(outside.values()) + max(within, default=0)

    def _enters(self, index: int) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._now = index
            hidden = args[0] if args else kwargs.get("hidden_states")
            if isinstance(hidden, Tensor):
                self._inputs[_storage(hidden)] = hidden.untyped_storage().nbytes()

        return hook

    def _leaves(self, *_: Any) -> None:
        self._now = None

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = _storage(tensor)
        if storage not in self._parameters and storage not in self._bytes:
            self._bytes[storage] = tensor.untyped_storage().nbytes()
            self._owner[storage] = self._now
        return tensor


def _storage(tensor: Tensor) -> int:
    """The identity of what holds the numbers, whichever view is saved; addresses of fake tensors are all zero."""
    identity: int = tensor.untyped_storage()._cdata
    return identity


def _attention_flops(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    count: int = sdpa_flop_count(query, key, value)  # type: ignore[no-untyped-call]
    return count


def _attention_backward_flops(grad: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    count: int = sdpa_backward_flop_count(grad, query, key, value)  # type: ignore[no-untyped-call]
    return count


# torch's counter knows the attention kernels of GPUs alone.
_CPU_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
}
