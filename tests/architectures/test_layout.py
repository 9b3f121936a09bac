"""Where a model keeps its blocks and residual adds, whatever its family calls them."""

from __future__ import annotations

import pytest
import torch
from transformers import AlbertConfig, AlbertModel

import quietformer as qf
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


def _albert(groups=1, passes=6):
    torch.manual_seed(0)
    config = AlbertConfig(
        vocab_size=99, embedding_size=16, hidden_size=32, num_hidden_layers=passes, num_hidden_groups=groups,
        num_attention_heads=4, intermediate_size=64, max_position_embeddings=64, attn_implementation="eager",
    )  # fmt: skip
    model = AlbertModel(config).eval()
    with torch.no_grad():  # an outlier, so that passes differ
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_every_pass_of_a_shared_layer_is_a_layer(groups):
    """Against transformers' own hidden states, attentions and the layer run by hand."""
    model, given = _albert(groups), {"input_ids": inputs("bert")["input_ids"]}
    report = qf.inspect_model(model, [given])
    assert report.model.layers == 6
    assert report.model.post_norm
    with torch.no_grad():
        output = model(**given, output_hidden_states=True, output_attentions=True)
        for layer, states in enumerate(output.hidden_states[:-1]):
            group = model.encoder.albert_layer_groups[layer * groups // 6].albert_layers[0]
            attended = group.attention(states)[0]
            raw = group.ffn_output(group.activation(group.ffn(attended)))
            measured = report.tensor("ffn_output", layer)
            assert measured.largest == pytest.approx(float(raw.abs().max()), rel=1e-4)
            assert report.tensor("ffn_residual", layer).largest == pytest.approx(
                float((raw + attended).abs().max()), rel=1e-4
            )
    sinks = [row.sink for row in report.heads]
    for layer, weights in enumerate(output.attentions):
        expected = weights.mean(2).amax(-1).mean(0)
        assert sinks[layer] == pytest.approx(expected.tolist(), rel=1e-3)


@pytest.mark.parametrize(("name", "inner"), [("swin", "blocks"), ("t5", "block"), ("bert", "layer")])
def test_a_block_has_attention_and_an_ffn_whatever_is_numbered_around_them(name, inner):
    model, _ = residual_model(name)
    names = [block.name.split(".") for block in find_blocks(model)]
    assert all(parts[-2] == inner and parts[-1].isdigit() for parts in names)
    if name == "swin":
        assert len(names) == sum(model.config.depths)
