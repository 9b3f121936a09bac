"""Where a model keeps its blocks and residual adds, whatever its family calls them."""

from __future__ import annotations

import pytest
import torch

from quietformer.analysis.recorder import record
from quietformer.architectures.layout import find_blocks, find_residuals, is_post_norm
from tests.tiny_models import build, inputs

POST_NORM = ["bert", "opt_post", "jina_embeddings_v3", "nomic_bert"]


@pytest.mark.parametrize("name", [*POST_NORM, "opt", "llama", "gpt2", "vit", "gemma2", "gpt_neox", "olmo2"])
def test_what_is_called_a_residual_add_is_one(name):
    """Against the definition: what came into the sublayer plus what it gave, whatever the family calls its norms."""
    model, given = residual_model(name)
    blocks = find_blocks(model)
    with torch.no_grad():
        residuals = find_residuals(blocks, lambda: model(**given))
        tensors = {}
        watches = [watch for block in blocks for watch in block.watches()] + residuals
        keep = lambda site, layer, x: tensors.setdefault((site, layer), x.reshape(-1, x.shape[-1]))  # noqa: E731
        with record(model, keep, watches=watches):
            model(**given)
    found = {watch.site for watch in residuals}
    assert ("attention_residual" in found) == (name not in ("gemma2", "gpt_neox", "olmo2"))
    assert is_post_norm(residuals) == (name in POST_NORM)
    for layer in range(len(blocks)):
        if ("attention_residual", layer) in tensors:
            entering = tensors[("attention_residual", layer)] - tensors[("attention_output", layer)]
            bases = [tensors[("attention_residual", layer)], tensors.get(("attention_norm", layer))]
            if layer:  # what enters a block is what left the one before, normalised last in post-norm models
                left = [tensors.get((site, layer - 1)) for site in ("ffn_residual", "ffn_norm")]
                assert any(x is not None and torch.allclose(entering, x, atol=1e-3) for x in left)
            total = tensors[("ffn_residual", layer)] - tensors[("ffn_output", layer)]
            assert any(base is not None and torch.allclose(total, base, atol=1e-3) for base in bases)


def residual_model(name):
    if name in ("bert", "opt", "vit", "llama", "gpt2"):
        return build(name), inputs(name)
    if name == "opt_post":
        from transformers import OPTConfig, OPTForCausalLM

        config = OPTConfig(
            vocab_size=99, hidden_size=32, word_embed_proj_dim=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64,
            max_position_embeddings=64, do_layer_norm_before=False,
        )  # fmt: skip
        return OPTForCausalLM(config).eval(), inputs("opt")
    from tests.families.tiny import tiny

    built = tiny(name)
    return built.model, built.inputs
