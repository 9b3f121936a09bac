"""Shows what modules read while batches run through a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor, nn
from transformers import PreTrainedModel

from quietformer.architectures.forward import Batch, run


def watch_inputs(
    model: PreTrainedModel,
    modules: Iterable[nn.Module],
    batches: list[Batch],
    watch: Callable[[nn.Module, Tensor], None],
) -> None:
    """Run the batches and show what each module reads, one row a token."""

    def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        if args[0].numel():  # an expert may get no tokens
            watch(module, args[0].detach().flatten(0, -2))

    handles = [module.register_forward_pre_hook(hook) for module in modules]
    try:
        for batch in batches:
            run(model, batch)
    finally:
        for handle in handles:
            handle.remove()
