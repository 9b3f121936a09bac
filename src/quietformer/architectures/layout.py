"""Where a model keeps its blocks, and the tensors of a block that are measured, by name."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from quietformer.attention.adapters import find_swappable
from quietformer.attention.find_layers import interface_caller
from quietformer.errors import UnsupportedModelError

# For each kind of tensor, the names under which families keep the module that outputs it. The first name counts that exists
# and is not taken by an earlier kind: `post_attention_layernorm` is the FFN's norm in Llama and attention's in post-norm models.
PLACES: dict[str, tuple[str, ...]] = {
    "attention_output": (
        "attention.output.dense", "self_attn.out_proj", "self_attn.o_proj", "self_attn.dense", "attention.o_proj",
        "attention.out_proj", "attention.out_lin", "attention.dense", "self_attention.dense", "attn.c_proj",
        "attn.proj", "attn.Wo", "attn.out_proj", "attn.o_proj", "layer.0.SelfAttention.o", "attention.attention.o_proj",
        "attention.attn.o",
    ),
    "ffn_output": (
        "output.dense", "fc2", "mlp.fc2", "mlp.down_proj", "mlp.c_proj", "mlp.dense_4h_to_h", "mlp.fc_out", "mlp.Wo",
        "ffn.lin2", "ffn_output", "feed_forward.down_proj", "layer.1.DenseReluDense.wo", "layer.2.DenseReluDense.wo", "mlp",
        "block_sparse_moe", "feed_forward", "ffn",
    ),
    "attention_norm": (
        "attention.output.LayerNorm", "self_attn_layer_norm", "input_layernorm", "layernorm_before",
        "sa_layer_norm", "ln_1", "layer_norm1", "norm1", "attn_norm", "layer.0.layer_norm", "norm_before",
        "attention.LayerNorm", "post_attention_layernorm",
    ),
    "ffn_norm": (
        "output.LayerNorm", "final_layer_norm", "pre_feedforward_layernorm", "pre_mlp_layernorm",
        "post_attention_layernorm", "layernorm_after", "output_layer_norm", "ln_2", "layer_norm2", "norm2", "mlp_norm",
        "layer.2.layer_norm", "layer.1.layer_norm", "full_layer_layer_norm",
        "norm_after", "post_mlp_layernorm", "post_feedforward_layernorm",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Headline:
    """The tensors whose metrics stand for a model: the paper's choice where it made one."""

    infinity: str
    kurtosis: tuple[str, ...]
    source: str


HEADLINES = {
    "bert": Headline("ffn_output", ("ffn_output", "ffn_norm"), "as the paper's code measures BERT"),
    "opt": Headline(
        "ffn_residual",
        ("ffn_residual", "ffn_output", "ffn_norm", "attention_output", "attention_norm", "final_norm"),
        "as the paper's code measures OPT",
    ),
}


def headline(model_type: str, residuals: list[Watch]) -> Headline:
    """Post-norm models are measured like BERT, pre-norm models at the residual stream, which is never normalised there."""
    if model_type in HEADLINES:
        return HEADLINES[model_type]
    if is_post_norm(residuals):
        return Headline("ffn_output", ("ffn_output", "ffn_norm"), "like BERT, since it is post-norm")
    stream = "ffn_residual" if any(watch.site == "ffn_residual" for watch in residuals) else "block_output"
    return Headline(stream, (stream, "ffn_output"), "layer outputs, since it is pre-norm")


def is_post_norm(residuals: list[Watch]) -> bool:
    """Whether norms read the residual adds of the blocks."""
    return any(watch.site == "ffn_residual" and watch.end == "input" for watch in residuals)


@dataclass(frozen=True)
class Watch:
    """One tensor of one block."""

    site: str
    layer: int
    module: nn.Module
    end: Literal["input", "output"]


@dataclass(frozen=True)
class Block:
    """One transformer block."""

    index: int
    name: str
    module: nn.Module
    attention: str  # full name of its self-attention layer
    passes: int = 1  # how often a forward pass runs it; each pass is a layer, the first of them `index`

    def watches(self) -> list[Watch]:
        """The tensors this block has by name; its residual adds are found by `find_residuals` instead."""
        found: list[Watch] = []
        for site, places in PLACES.items():
            for path in places:
                module = _descend(self.module, path)
                if module is not None and not any(watch.module is module for watch in found):
                    found.append(Watch(site, self.index, module, "output"))
                    break
        return found


def find_residuals(blocks: list[Block], run: Callable[[], object]) -> list[Watch]:
    """Where the residual adds of each block can be read: tensors that equal the block's input plus a sublayer's output.

    Families place norms before, after or on both sides of a sublayer under similar names, so names say too little. `run` makes
    one forward pass, and only tensors that add up are residual adds. Otherwise the block's output is called `block_output`.
    """
    seen: dict[tuple[int, str], Tensor] = {}
    handles = []

    def keep(key: tuple[int, str], end: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            tensor = (args[0] if args else kwargs.get("hidden_states")) if end == "input" else output
            tensor = tensor[0] if isinstance(tensor, tuple) else tensor
            if isinstance(tensor, Tensor):
                seen.setdefault(key, tensor.detach().float().reshape(-1, tensor.shape[-1]))

        return hook

    for block in blocks:
        for watch in block.watches():
            for end in ("input", "output"):
                handle = watch.module.register_forward_hook(
                    keep((block.index, f"{watch.site}.{end}"), end), with_kwargs=True
                )
                handles.append(handle)
        for end in ("input", "output"):
            handles.append(
                block.module.register_forward_hook(keep((block.index, f"block.{end}"), end), with_kwargs=True)
            )
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return [watch for block in blocks for watch in _residuals_of(block, seen)]


def _residuals_of(block: Block, seen: dict[tuple[int, str], Tensor]) -> Iterator[Watch]:
    tensors = {name: tensor for (index, name), tensor in seen.items() if index == block.index}
    by_site = {watch.site: watch for watch in block.watches()}

    def first_sum(branch: str, bases: list[str], places: list[str]) -> str | None:
        for place, base in itertools.product(places, bases):
            if all(name in tensors for name in (branch, base, place)) and _adds_up(
                tensors[base], tensors[branch], tensors[place]
            ):
                return place
        return None

    middle = first_sum("attention_output.output", ["block.input"], ["attention_norm.input", "ffn_norm.input"])
    if middle is not None:
        yield Watch("attention_residual", block.index, by_site[middle.partition(".")[0]].module, "input")
    bases = [name for name in (middle, "attention_norm.output", "ffn_norm.input") if name is not None]
    end = first_sum("ffn_output.output", bases, ["ffn_norm.input", "block.output"])
    if end == "ffn_norm.input":
        yield Watch("ffn_residual", block.index, by_site["ffn_norm"].module, "input")
    else:
        yield Watch("ffn_residual" if end else "block_output", block.index, block.module, "output")


def _adds_up(base: Tensor, branch: Tensor, total: Tensor) -> bool:
    if not base.shape == branch.shape == total.shape:
        return False
    sum_ = base + branch
    # Relative to the largest value, and loose enough for bfloat16.
    return bool((sum_ - total).abs().max() <= 1e-2 * sum_.abs().max())


def find_blocks(model: nn.Module) -> list[Block]:
    """The blocks of the model: members of a list of modules that each hold an attention layer."""
    swappable = {layer.name for _, layer in find_swappable(model)}
    attention = [name for name, module in model.named_modules() if interface_caller(type(module)) or name in swappable]
    if not attention:
        # Models without the attention interface (Falcon, Bloom, DeBERTa): find the blocks by the names of their parts.
        attention = [name for name, module in model.named_modules() if "Attention" in type(module).__name__]
    blocks: dict[str, str] = {}
    for name in attention:
        if (path := _block_around(model, name)) is not None:
            blocks.setdefault(path, name)
    return [
        Block(index, path, model.get_submodule(path), attention)
        for index, (path, attention) in enumerate(blocks.items())
    ]


def _block_around(model: nn.Module, attention: str) -> str | None:
    """The innermost numbered module with more in it than attention: T5 numbers sublayers inside its blocks, Swin its stages."""
    parts = attention.split(".")
    holders = [".".join(parts[: place + 1]) for place, part in enumerate(parts) if part.isdigit()]
    for path in reversed(holders):
        inside = attention.removeprefix(f"{path}.").partition(".")[0]
        children = model.get_submodule(path).named_children()
        if any(_has_weights(child) for name, child in children if name != inside):
            return path
    return holders[0] if holders else None


def _has_weights(module: nn.Module) -> bool:
    """Whether there is more in it than norms."""
    return any(parameter.dim() > 1 for parameter in module.parameters())


def in_passes(blocks: list[Block], run: Callable[[], object]) -> list[Block]:
    """The blocks with how often one forward pass runs each, as `run` shows it: models such as ALBERT share their layers."""
    counts = dict.fromkeys((block.name for block in blocks), 0)

    def count(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: Any) -> None:
            counts[name] += 1

        return hook

    handles = [block.module.register_forward_pre_hook(count(block.name)) for block in blocks]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    found, layer = [], 0
    for block in blocks:
        passes = max(1, counts[block.name])
        found.append(dataclasses.replace(block, index=layer, passes=passes))
        layer += passes
    return found


def layers_of(blocks: list[Block]) -> int:
    """How many layers a forward pass has."""
    return sum(block.passes for block in blocks)


def final_norm(model: nn.Module) -> nn.Module | None:
    """The norm after the last block of a pre-norm model."""
    for name, module in model.named_modules():
        last = name.rpartition(".")[2]
        numbered = any(part.isdigit() for part in name.split("."))
        if not numbered and last in ("final_layer_norm", "norm", "ln_f", "layernorm", "post_layernorm", "final_norm"):
            found: nn.Module = module
            return found
    return None


def output_embeddings(model: nn.Module) -> nn.Module | None:
    """The module that turns hidden states into scores of tokens; None where the model has none."""
    untyped: Any = model
    with contextlib.suppress(AttributeError, NotImplementedError):  # some models raise where they have none
        found: nn.Module | None = untyped.get_output_embeddings()
        return found
    return None


def vocabulary_size(model: nn.Module) -> int:
    """How many tokens the model has embeddings of; a model of several kinds of input has no one table of them."""
    untyped: Any = model
    with contextlib.suppress(AttributeError, NotImplementedError):
        return int(untyped.get_input_embeddings().weight.shape[0])
    raise UnsupportedModelError(
        f"{type(model).__name__} has no single table of token embeddings, so it does not take text alone; save one part of it "
        "(e.g. its text_model) to a folder and give that"
    )


def head_modules(model: Any) -> set[int]:
    """The ids of the modules of the head: all modules outside the base model, and the output embeddings."""
    base = model.base_model
    outside = set() if base is model else {id(module) for module in model.modules()} - {id(m) for m in base.modules()}
    return outside | {id(output_embeddings(model))}


def _descend(module: nn.Module, path: str) -> nn.Module | None:
    try:
        found: nn.Module = module.get_submodule(path)
        return found
    except AttributeError:
        return None
