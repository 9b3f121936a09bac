"""Shows what modules read while batches run through a model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

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
    with watching_inputs(modules, watch):
        for batch in batches:
            run(model, batch)


@contextlib.contextmanager
def watching_inputs(modules: Iterable[nn.Module], watch: Callable[[nn.Module, Tensor], None]) -> Iterator[None]:
    """Show what each module reads, one row a token, whenever it runs inside the context."""

    def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        if args[0].numel():  # an expert may get no tokens
            watch(module, args[0].detach().flatten(0, -2))

    handles = [module.register_forward_pre_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
