"""Where a model's blocks are, and within a block the tensors worth watching, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from quietformer.attention.layers import interface_caller
from quietformer.attention.timm_vit import find_timm_layers

# For each site the places families keep it, first match wins: (path inside the block, its input or its output).
PLACES: dict[str, tuple[tuple[str, Literal["input", "output"]], ...]] = {
    "attention_output": tuple(
        (path, "output")
        for path in (
            "attention.output.dense", "self_attn.out_proj", "self_attn.o_proj", "self_attn.dense", "attention.o_proj",
            "attention.out_proj", "attention.out_lin", "attention.dense", "attn.c_proj", "attn.proj", "attn.Wo",
            "attn.out_proj", "attn.o_proj", "layer.0.SelfAttention.o", "attention.attention.o_proj",
        )
    ),
    "ffn_output": tuple(
        (path, "output")
        for path in (
            "output.dense", "fc2", "mlp.fc2", "mlp.down_proj", "mlp.c_proj", "mlp.dense_4h_to_h", "mlp.Wo",
            "ffn.lin2", "feed_forward.down_proj", "layer.1.DenseReluDense.wo", "layer.2.DenseReluDense.wo", "mlp",
            "block_sparse_moe", "feed_forward", "ffn",
        )
    ),
    "attention_norm": tuple(
        (path, "output")
        for path in (
            "attention.output.LayerNorm", "self_attn_layer_norm", "input_layernorm", "layernorm_before",
            "sa_layer_norm", "ln_1", "layer_norm1", "norm1", "attn_norm", "layer.0.layer_norm", "norm_before",
        )
    ),
    "ffn_norm": tuple(
        (path, "output")
        for path in (
            "output.LayerNorm", "final_layer_norm", "post_attention_layernorm", "layernorm_after", "output_layer_norm",
            "ln_2", "layer_norm2", "norm2", "mlp_norm", "layer.1.layer_norm", "norm_after",
        )
    ),
}  # fmt: skip
POST_NORM = ("attention.output.LayerNorm", "sa_layer_norm")
"""Blocks that normalise after the residual sum, so the sum is what the norm gets."""

Site = Literal["attention_output", "attention_residual", "attention_norm", "ffn_output", "ffn_residual", "ffn_norm"]


@dataclass(frozen=True)
class Headline:
    """Which sites stand for a model: the paper's choice where it made one."""

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


def headline(model_type: str, *, post_norm: bool) -> Headline:
    """Post-norm models are measured as BERT, pre-norm ones at the residual stream, which there is never normalised."""
    if model_type in HEADLINES:
        return HEADLINES[model_type]
    if post_norm:
        return Headline("ffn_output", ("ffn_output", "ffn_norm"), "as BERT, being post-norm")
    return Headline("ffn_residual", ("ffn_residual", "ffn_output"), "layer outputs, being pre-norm")


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

    @property
    def post_norm(self) -> bool:
        return any(_descend(self.module, path) is not None for path in POST_NORM)

    def watches(self) -> list[Watch]:
        """The sites this block has."""
        found = []
        for site, places in PLACES.items():
            for path, end in places:
                if (module := _descend(self.module, path)) is not None:
                    found.append(Watch(site, self.index, module, end))
                    break
        by_site = {watch.site: watch for watch in found}
        residuals = {"attention_residual": "attention_norm", "ffn_residual": "ffn_norm"}
        if self.post_norm:
            for site, norm in residuals.items():
                if norm in by_site:
                    found.append(Watch(site, self.index, by_site[norm].module, "input"))
        else:
            if "ffn_norm" in by_site:
                found.append(Watch("attention_residual", self.index, by_site["ffn_norm"].module, "input"))
            found.append(Watch("ffn_residual", self.index, self.module, "output"))
        return found


def find_blocks(model: nn.Module) -> list[Block]:
    """The blocks of the model: members of a list of modules that each hold an attention layer."""
    timm = {layer.name for layer in find_timm_layers(model)}
    attention = [name for name, module in model.named_modules() if interface_caller(type(module)) or name in timm]
    blocks: dict[str, str] = {}
    for name in attention:
        parts = name.split(".")
        holders = [i for i, part in enumerate(parts) if part.isdigit()]
        if holders:
            # The outermost numbered module: T5 keeps numbered sublayers inside a numbered block.
            path = ".".join(parts[: holders[0] + 1])
            blocks.setdefault(path, name)
    return [
        Block(index, path, model.get_submodule(path), attention)
        for index, (path, attention) in enumerate(blocks.items())
    ]


def final_norm(model: nn.Module) -> nn.Module | None:
    """The norm after the last block of a pre-norm model."""
    for name, module in model.named_modules():
        last = name.rpartition(".")[2]
        numbered = any(part.isdigit() for part in name.split("."))
        if not numbered and last in ("final_layer_norm", "norm", "ln_f", "layernorm", "post_layernorm", "final_norm"):
            found: nn.Module = module
            return found
    return None


def _descend(module: nn.Module, path: str) -> nn.Module | None:
    try:
        found: nn.Module = module.get_submodule(path)
        return found
    except AttributeError:
        return None
